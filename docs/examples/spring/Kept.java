import java.io.IOException;
import javax.servlet.http.HttpServletResponse;
import org.springframework.web.util.ContentCachingResponseWrapper;

/** An answer that is kept until it is copied, also where its body would be the container's and come when it is recorded:
    the errors that Spring sends itself (a content type, a header that is missing), and redirects. */
class Kept extends ContentCachingResponseWrapper {
    Kept(HttpServletResponse response) { super(response); }

    @Override
    public void sendError(int status) throws IOException {
        resetBuffer();
        Answer.problem(this, status, "Mend the request (4xx), or send it again with the same Idempotency-Key (5xx)");
    }

    /** Without the message, which may quote the request. */
    @Override
    public void sendError(int status, String message) throws IOException { sendError(status); }

    @Override
    public void sendRedirect(String location) {
        setStatus(SC_FOUND);
        setHeader("Location", location);
    }
}
