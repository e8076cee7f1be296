import java.io.ByteArrayInputStream;
import javax.servlet.*;
import javax.servlet.http.*;

/** A request whose body was read, and can be read again. */
class Repeatable extends HttpServletRequestWrapper {
    private final byte[] body;

    Repeatable(HttpServletRequest request, byte[] body) {
        super(request);
        this.body = body;
    }

    @Override
    public ServletInputStream getInputStream() {
        ByteArrayInputStream left = new ByteArrayInputStream(body);
        return new ServletInputStream() {
            @Override public int read() { return left.read(); }
            @Override public boolean isFinished() { return left.available() == 0; }
            @Override public boolean isReady() { return true; }
            @Override public void setReadListener(ReadListener listener) { throw new UnsupportedOperationException(); }
        };
    }
}
