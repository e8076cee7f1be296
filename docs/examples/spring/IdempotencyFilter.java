import java.io.*;
import java.nio.charset.*;
import java.util.*;
import javax.servlet.*;
import javax.servlet.http.*;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.*;
import org.springframework.transaction.support.*;
import org.springframework.util.StreamUtils;
import org.springframework.web.filter.OncePerRequestFilter;

/** Spring: what is below this filter happens once per Idempotency-Key. The filter opens the
    transaction, which @Transactional methods join; the answer is recorded in it, kept until
    COMMIT, and replayed. A 5xx or an exception is not recorded: the next request executes. */
public class IdempotencyFilter extends OncePerRequestFilter {
    private static final String CLAIM = "SELECT verdict::text, fence, result->>'status' AS recorded, result->>'body' AS body,"
        + " result->'headers'->>'Content-Type' AS type, result->'headers'->>'Location' AS location, idem_http_status(c) AS status,"
        + " ceil(extract(epoch FROM retry_after))::int AS retry_after FROM idem_claim(?, ?, jsonb_build_array(?::text, ?::jsonb), ?) c";
    private static final String COMPLETE = "SELECT idem_complete_key(?, ?, ?, jsonb_build_object('status', ?, 'body', ?::text,"
        + " 'headers', jsonb_strip_nulls(jsonb_build_object('Content-Type', ?::text, 'Location', ?::text))), ?)::text";
    private final JdbcTemplate db;
    private final TransactionTemplate transaction, savepoint;

    public IdempotencyFilter(JdbcTemplate db, PlatformTransactionManager manager) {
        this.db = db;
        transaction = new TransactionTemplate(manager);
        savepoint = new TransactionTemplate(manager, new DefaultTransactionDefinition(TransactionDefinition.PROPAGATION_NESTED));
    }

    @Override
    protected void doFilterInternal(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws IOException {
        try {
            once(request, response, chain);
        } catch (RuntimeException error) {
            logger.error("no outcome", error);
            Answer.noOutcome(response, error);
        }
    }

    private void once(HttpServletRequest request, HttpServletResponse response, FilterChain chain) throws IOException {
        String header = request.getHeader("Idempotency-Key"), account = request.getHeader("X-Account"); // what authentication found
        String key = header == null ? "" : header.replaceAll("^\"|\"$", ""), operation = request.getMethod() + " " + request.getRequestURI();
        if (key.isEmpty()) {
            Answer.problem(response, 400, "This endpoint needs an Idempotency-Key");
            return;
        }
        byte[] body = StreamUtils.copyToByteArray(request.getInputStream());
        Kept kept = new Kept(response);
        Map<String, Object> claim = transaction.execute(outer -> {
            Map<String, Object> answer = db.queryForMap(CLAIM, operation, key, request.getQueryString(), new String(body, StandardCharsets.UTF_8), account);
            if (!answer.get("verdict").equals("execute")) return answer;
            savepoint.execute(work -> {
                try {
                    chain.doFilter(new Repeatable(request, body), kept);
                } catch (IOException | ServletException error) {
                    throw new IllegalStateException(error);
                }
                if (kept.getStatus() >= 400) work.setRollbackOnly(); // a refusal is recorded, what was done before it is taken back
                return null;
            });
            if (kept.getStatus() >= 500) outer.setRollbackOnly();
            else db.queryForObject(COMPLETE, String.class, operation, key, answer.get("fence"), kept.getStatus(),
                new String(kept.getContentAsByteArray(), Charset.forName(kept.getCharacterEncoding())), kept.getContentType(), kept.getHeader("Location"), account);
            return answer;
        });
        if (claim.get("verdict").equals("execute")) {
            kept.copyBodyToResponse();
        } else if (claim.get("verdict").equals("replay")) {
            response.setHeader("Idempotent-Replayed", "true");
            if (claim.get("location") != null) response.setHeader("Location", (String) claim.get("location"));
            Answer.send(response, Integer.parseInt((String) claim.get("recorded")), (String) claim.get("type"), (String) claim.get("body"));
        } else {
            if (claim.get("retry_after") != null) response.setHeader("Retry-After", claim.get("retry_after").toString());
            Answer.problem(response, (Integer) claim.get("status"), "This Idempotency-Key: " + claim.get("verdict"));
        }
    }
}
