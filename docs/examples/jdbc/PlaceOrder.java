import java.sql.*;

/** Plain JDBC: an order, placed once per key. Claim; work in a savepoint; complete it, or take it back
    and record why; COMMIT. A repeat is answered from the record.

    CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY, client text, item text, quantity int CHECK (quantity > 0));
    export JDBC_URL='jdbc:postgresql://127.0.0.1/shop?user=app&currentSchema=public,idempotency'
    java -cp /usr/share/java/postgresql.jar PlaceOrder.java acme order-1 '{"item": "lamp", "quantity": 2}' */
public class PlaceOrder {
    static final String CLAIM = "SELECT verdict::text, fence, CASE verdict WHEN 'replay' THEN coalesce(result, error) END"
        + " FROM idem_claim('place_order', ?, ?::jsonb, ?)";
    static final String INSERT = "INSERT INTO orders (client, item, quantity) SELECT ?, o->>'item', (o->>'quantity')::int"
        + " FROM (SELECT ?::jsonb) j (o) RETURNING jsonb_build_object('order', id, 'item', item)";
    static final String COMPLETE = "SELECT idem_complete_key('place_order', ?, ?, ?::jsonb, ?)";
    static final String FAIL = "SELECT idem_fail_key('place_order', ?, ?, ?::jsonb, principal => ?)";

    /** The first row; also for functions that return void, whose executeUpdate() is refused. */
    static String[] ask(Connection db, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = db.prepareStatement(sql)) {
            for (int i = 0; i < values.length; i++) statement.setObject(i + 1, values[i]);
            ResultSet row = statement.executeQuery();
            row.next();
            String[] columns = new String[row.getMetaData().getColumnCount()];
            for (int i = 0; i < columns.length; i++) columns[i] = row.getString(i + 1);
            return columns;
        }
    }

    static String place(Connection db, String account, String key, String order) throws SQLException {
        String[] claim = ask(db, CLAIM, key, order, account);
        if (!claim[0].equals("execute")) {
            db.rollback();
            return claim[0] + ": " + claim[2]; // replay; or in_progress, mismatch, unknown, expired
        }
        long fence = Long.parseLong(claim[1]);
        String outcome;
        Savepoint work = db.setSavepoint();
        try {
            outcome = ask(db, INSERT, account, order)[0];
            ask(db, COMPLETE, key, fence, outcome, account);
        } catch (SQLException error) {
            if (!error.getSQLState().equals("23514")) throw error; // no outcome: a repeat executes
            db.rollback(work); // a refusal: the claim stays, what was done for it does not
            outcome = "{\"error\": \"bad quantity\"}";
            ask(db, FAIL, key, fence, outcome, account);
        }
        db.commit();
        return "execute: " + outcome;
    }

    public static void main(String[] args) throws SQLException {
        try (Connection db = DriverManager.getConnection(System.getenv("JDBC_URL"))) { // close() rolls back
            db.setAutoCommit(false);
            System.out.println(place(db, args[0], args[1], args[2]));
        }
    }
}
