import java.sql.*;
import java.util.*;
import org.postgresql.util.*;

/** pgjdbc: what setString and setObject(UUID) send has a type, so jsonb and a UUID key want a
    cast. A composite comes as a PGobject and goes back as it is, a lease is a PGInterval. */
public class Jdbc {
    record Answer(String verdict, long fence, String result, String error, PGInterval retryAfter, int holder) {}

    static final String LAMP = "{\"item\": \"lamp\", \"quantity\": 2}", NONE = "{\"item\": \"lamp\", \"quantity\": 0}";
    static final String MODE = System.getenv("JDBC_MODE"), ME = "pgjdbc " + MODE;
    static final String CLAIM = "SELECT verdict, fence, result, error, retry_after, holder"
        + " FROM idem_claim('create_order', ?::text, ?::jsonb, ?, lease => ?)";

    static Connection connect() throws SQLException {
        return DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + System.getenv("RELAY_PORT") + "/shop?user=app&" + MODE);
    }

    /** The first column of the first row; also for functions that return void. */
    static Object one(Connection db, String sql, Object... values) throws SQLException {
        try (var statement = db.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
            try (var rows = statement.executeQuery()) {
                return rows.next() ? rows.getObject(1) : null;
            }
        }
    }

    static Answer claim(Connection db, Object key, String params, PGInterval lease) throws SQLException {
        try (var statement = db.prepareStatement(CLAIM)) {
            Object[] values = {key, params, ME, lease};
            for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
            try (var row = statement.executeQuery()) {
                row.next();
                return new Answer(row.getString(1), row.getLong(2), row.getString(3), row.getString(4), (PGInterval) row.getObject(5), row.getInt(6));
            }
        }
    }

    static Answer claim(Connection db, Object key, String params) throws SQLException {
        return claim(db, key, params, null);
    }

    static Object complete(Connection db, String key, long fence, String result) throws SQLException {
        return one(db, "SELECT idem_complete_key('create_order', ?, ?, ?::jsonb, ?)", key, fence, result, ME).toString();
    }

    static Object insert(Connection db, int quantity) throws SQLException {
        return one(db, "INSERT INTO orders (client, item, quantity) VALUES (?, 'lamp', ?) RETURNING id", ME, quantity);
    }

    static Object status(Connection db, String what, String key) throws SQLException {
        return String.valueOf(one(db, "SELECT " + what + " FROM idem_status('create_order', ?, ?)", key, ME));
    }

    public static void main(String[] args) throws Exception {
        Connection db = connect(), other = connect();
        db.setAutoCommit(false);

        var first = claim(db, "k1", LAMP);
        var order = "{\"order\": " + insert(db, 2) + "}";
        var busy = claim(other, "k1", LAMP);
        var pid = ((org.postgresql.PGConnection) db).getBackendPID();
        var returned = complete(db, "k1", first.fence, order);
        db.commit();
        Tap.check("execute: the first claim executes, and the result is handed back", List.of(first.verdict, returned), List.of("execute", order));
        Tap.check("in progress: told at once, by whom and for how long", List.of(busy.verdict, busy.holder, busy.retryAfter.getSeconds() > 0), List.of("in_progress", pid, true));
        var again = claim(db, "k1", LAMP);
        Tap.check("replay: the recorded result, as JSON text", List.of(again.verdict, again.result), List.of("replay", order));
        Tap.check("mismatch: other params", claim(db, "k1", NONE).verdict, "mismatch");

        claim(db, "k2", LAMP);
        var forgotten = Tap.raised(SQLException.class, () -> { db.commit(); return 0; });
        Tap.check("forgotten completion: commit() throws PSQLException, getSQLState() is ID003",
            List.of(forgotten.getClass(), forgotten.getSQLState()), List.of(PSQLException.class, "ID003"));
        Tap.check("forgotten completion: nothing is left", status(db, "state", "k2"), "absent");

        var third = claim(db, "k3", NONE);
        var work = db.setSavepoint();
        var refused = Tap.raised(SQLException.class, () -> insert(db, 0));
        db.rollback(work);
        one(db, "SELECT idem_fail_key('create_order', 'k3', ?, '{\"code\": \"bad_quantity\"}', principal => ?)", third.fence, ME);
        db.commit();
        var failed = claim(db, "k3", NONE);
        Tap.check("savepoint: the claim outlives the work's setSavepoint()", List.of(third.verdict, refused.getSQLState()), List.of("execute", "23514"));
        Tap.check("failure recorded: it is replayed", List.of(failed.verdict, failed.error), List.of("replay", "{\"code\": \"bad_quantity\"}"));

        var leased = claim(db, "k4", LAMP, new PGInterval("30 seconds"));
        db.commit();
        Tap.check("leased call: others see it while no transaction is open", claim(other, "k4", LAMP).verdict, "in_progress");
        complete(db, "k4", leased.fence, "{\"charge\": \"ch_1\"}");
        db.commit();
        Tap.check("leased call: completed by a later transaction", claim(db, "k4", LAMP).result, "{\"charge\": \"ch_1\"}");

        var handle = one(db, "SELECT c FROM idem_claim('create_order', 'k5', principal => ?) c", ME);
        one(db, "SELECT idem_complete(?::idem_answer, ?::jsonb)", handle, "[1, 2]");
        db.commit();
        Tap.check("answer handed back: a PGobject, with the cast", List.of(handle.getClass(), status(db, "result", "k5")), List.of(PGobject.class, "[1, 2]"));

        var once = "SELECT idem_once('on_payment', 'e1', ?)";
        Tap.check("once: true, then false", List.of(one(db, once, ME), one(db, once, ME)), List.of(true, false));
        Tap.check("types: UUID with ?::text, params with ?::jsonb, PGInterval; the fence is a long",
            claim(db, UUID.randomUUID(), LAMP, new PGInterval("5 seconds")).verdict, "execute");
        db.commit();

        var typed = MODE.contains("simple") ? "none" : "42883";
        Tap.check("trap: JSON text without ?::jsonb finds no function" + (typed.equals("none") ? ", but for the simple protocol" : ""), state(db, LAMP, "k6"), typed);
        Tap.check("trap: N06: a UUID without ?::text finds no function", state(db, null, UUID.randomUUID()), "42883");
        var names = Tap.raised(SQLException.class, () -> one(other, "SELECT idem_claim('create_order', ?, ?)", "k6", LAMP));
        Tap.check("trap: the message reads (unknown, character varying, character varying)" + (typed.equals("none") ? ", but for the simple protocol" : ""),
            names.getMessage().contains(typed.equals("none") ? "no principal" : "idem_claim(unknown, character varying, character varying)"), true);
        Tap.check("types: the operator ? of jsonb is written ??", one(db, "SELECT '{\"a\": 1}'::jsonb ?? 'a'"), true);
        Tap.check("trap: currentSchema in the URL says where it is", List.of(schema("public"), schema("public,idempotency")), List.of("42883", "none"));
        var update = Tap.raised(SQLException.class, () -> other.prepareStatement("SELECT idem_once('on_payment', 'e2', 'x')").executeUpdate());
        Tap.check("trap: executeUpdate() runs it, then refuses that there is a result: use executeQuery()",
            List.of(update.getSQLState(), one(other, "SELECT idem_once('on_payment', 'e2', 'x')")), List.of("0100E", false));
        Tap.done();
    }

    /** What a session whose URL says that schema is told. */
    static String schema(String path) throws SQLException {
        try (Connection db = DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + System.getenv("RELAY_PORT") + "/shop?user=app&currentSchema=" + path)) {
            one(db, "SELECT state FROM idem_status('create_order', ?, ?)", "k1", ME);
            return "none";
        } catch (SQLException error) {
            return error.getSQLState();
        }
    }

    static String state(Connection db, String params, Object key) throws SQLException {
        try {
            one(db, "SELECT verdict FROM idem_claim('create_order', ?, ?, '" + ME + "')", key, params);
            return "none";
        } catch (SQLException error) {
            return error.getSQLState();
        } finally {
            db.rollback();
        }
    }
}
