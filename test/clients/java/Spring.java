import java.util.*;
import org.postgresql.ds.PGSimpleDataSource;
import org.postgresql.util.PGInterval;
import org.springframework.dao.DataAccessException;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.transaction.*;
import org.springframework.transaction.support.*;

/** Spring: JdbcTemplate inside a TransactionTemplate, as inside @Transactional;
    PROPAGATION_NESTED is the savepoint. */
public class Spring {
    static final String LAMP = "{\"item\": \"lamp\", \"quantity\": 2}", NONE = "{\"item\": \"lamp\", \"quantity\": 0}";
    static final PGSimpleDataSource source = new PGSimpleDataSource();
    static final DataSourceTransactionManager manager = new DataSourceTransactionManager(source);
    static final JdbcTemplate db = new JdbcTemplate(source);

    static TransactionTemplate transaction(int propagation) {
        return new TransactionTemplate(manager, new DefaultTransactionDefinition(propagation));
    }

    static final TransactionTemplate once = transaction(TransactionDefinition.PROPAGATION_REQUIRED),
        nested = transaction(TransactionDefinition.PROPAGATION_NESTED), apart = transaction(TransactionDefinition.PROPAGATION_REQUIRES_NEW);

    static Map<String, Object> claim(Object key, String params, PGInterval lease) {
        return db.queryForMap("SELECT verdict, fence, result::text, error::text, retry_after, holder"
            + " FROM idem_claim('create_order', ?::text, ?::jsonb, 'spring', lease => ?)", key, params, lease);
    }

    static Object verdict(Map<String, Object> answer) {
        return answer.get("verdict").toString();
    }

    static String complete(String key, Object fence, String result) {
        return db.queryForObject("SELECT idem_complete_key('create_order', ?, ?, ?::jsonb, 'spring')::text", String.class, key, fence, result);
    }

    static int insert(int quantity) {
        return db.queryForObject("INSERT INTO orders (client, item, quantity) VALUES ('spring', 'lamp', ?) RETURNING id", Integer.class, quantity);
    }

    static String status(String what, String key) {
        return db.queryForObject("SELECT " + what + "::text FROM idem_status('create_order', ?, 'spring')", String.class, key);
    }

    public static void main(String[] args) throws Exception {
        source.setURL("jdbc:postgresql://127.0.0.1:" + System.getenv("RELAY_PORT") + "/shop?user=app");
        var busy = new HashMap<String, Object>();
        var order = once.execute(tx -> {
            var mine = claim("k1", LAMP, null);
            var result = "{\"order\": " + insert(2) + "}";
            apart.execute(inner -> { busy.putAll(claim("k1", LAMP, null)); return null; });
            busy.put("pid", db.queryForObject("SELECT pg_backend_pid()", Integer.class));
            Tap.check("execute: the first claim executes, and the result is handed back",
                List.of(verdict(mine), complete("k1", mine.get("fence"), result)), List.of("execute", result));
            return result;
        });
        Tap.check("in progress: told at once, by whom and for how long", List.of(verdict(busy), busy.get("holder"),
            ((PGInterval) busy.get("retry_after")).getSeconds() > 0), List.of("in_progress", busy.get("pid"), true));
        var again = claim("k1", LAMP, null);
        Tap.check("replay: the recorded result, as JSON text", List.of(verdict(again), again.get("result")), List.of("replay", order));
        Tap.check("mismatch: other params", verdict(claim("k1", NONE, null)), "mismatch");

        var forgotten = Tap.raised(RuntimeException.class, () -> once.execute(tx -> claim("k2", LAMP, null)));
        Tap.check("forgotten completion: a TransactionSystemException, whose root cause has getSQLState() ID003",
            List.of(forgotten.getClass().getSimpleName(), sqlState(forgotten)), List.of("TransactionSystemException", "ID003"));
        Tap.check("forgotten completion: nothing is left", status("state", "k2"), "absent");

        once.execute(tx -> {
            var mine = claim("k3", NONE, null);
            var refused = Tap.raised(DataAccessException.class, () -> nested.execute(inner -> insert(0)));
            Tap.check("savepoint: the claim outlives the work's PROPAGATION_NESTED", List.of(verdict(mine), sqlState(refused)), List.of("execute", "23514"));
            db.queryForList("SELECT idem_fail_key('create_order', 'k3', ?, '{\"code\": \"bad_quantity\"}', principal => 'spring')", mine.get("fence"));
            return null;
        });
        var failed = claim("k3", NONE, null);
        Tap.check("failure recorded: it is replayed", List.of(verdict(failed), failed.get("error")), List.of("replay", "{\"code\": \"bad_quantity\"}"));

        var leased = claim("k4", LAMP, new PGInterval("30 seconds"));
        Tap.check("leased call: others see it while no transaction is open", verdict(claim("k4", LAMP, null)), "in_progress");
        complete("k4", leased.get("fence"), "{\"charge\": \"ch_1\"}");
        Tap.check("leased call: completed by a later transaction", claim("k4", LAMP, null).get("result"), "{\"charge\": \"ch_1\"}");

        once.execute(tx -> {
            var handle = db.queryForObject("SELECT c::text FROM idem_claim('create_order', 'k5', principal => 'spring') c", String.class);
            return db.queryForList("SELECT idem_complete(?::idem_answer, '[1, 2]')", handle);
        });
        Tap.check("answer handed back: as text, cast to idem_answer", status("result", "k5"), "[1, 2]");

        var event = "SELECT idem_once('on_payment', 'e1', 'spring')";
        Tap.check("once: true, then false", List.of(db.queryForObject(event, Boolean.class), db.queryForObject(event, Boolean.class)), List.of(true, false));
        var native_ = claim(UUID.randomUUID(), LAMP, new PGInterval("5 seconds"));
        Tap.check("types: UUID with ?::text, params with ?::jsonb, PGInterval; the fence is a Long", List.of(verdict(native_), native_.get("fence").getClass()), List.of("execute", Long.class));

        once.setReadOnly(true);
        var reader = Tap.raised(DataAccessException.class, () -> once.execute(tx -> claim("k6", LAMP, null)));
        Tap.check("trap: in @Transactional(readOnly = true) a claim is refused", sqlState(reader), "25006");
        var outside = Tap.raised(DataAccessException.class, () -> claim("k7", LAMP, null));
        Tap.check("trap: outside a transaction a claim without lease ends at once", sqlState(outside), "ID003");
        Tap.done();
    }

    static String sqlState(Throwable thrown) {
        while (thrown.getCause() != null) thrown = thrown.getCause();
        return ((java.sql.SQLException) thrown).getSQLState();
    }
}
