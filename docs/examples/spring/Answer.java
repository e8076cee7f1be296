import java.io.IOException;
import java.sql.SQLException;
import java.util.*;
import javax.servlet.http.HttpServletResponse;
import org.springframework.core.NestedExceptionUtils;

/** What the filter sends itself: what is recorded, and problems. */
class Answer {
    /** No account, a key that is too long, a body that is no JSON. */
    private static final List<String> BAD_REQUEST = Arrays.asList("22023", "22032", "22P02", "22P05");

    /** In the encoding that the type says, or that the container takes for it: as the body was read when it was recorded. */
    static void send(HttpServletResponse response, int status, String type, String body) throws IOException {
        response.setStatus(status);
        response.setContentType(type);
        response.getOutputStream().write(body.getBytes(response.getCharacterEncoding()));
    }

    static void problem(HttpServletResponse response, int status, String title) throws IOException {
        send(response, status, "application/problem+json", "{\"status\": " + status + ", \"title\": \"" + title + "\"}");
    }

    /** Without what the database says of it, which is for the log. */
    static void noOutcome(HttpServletResponse response, Throwable error) throws IOException {
        Throwable cause = NestedExceptionUtils.getRootCause(error);
        response.reset();
        if (cause instanceof SQLException && BAD_REQUEST.contains(((SQLException) cause).getSQLState()))
            problem(response, 400, "The account, the key or the body is missing or wrong");
        else problem(response, 500, "Try again with the same Idempotency-Key");
    }
}
