import java.util.Map;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.transaction.annotation.Transactional;

interface Orders { Map<String, Object> create(String account, String order); }

/** What an application has below the filter, whose transaction it joins. */
public class OrderService implements Orders {
    private final JdbcTemplate db;

    OrderService(JdbcTemplate db) { this.db = db; }

    @Override @Transactional
    public Map<String, Object> create(String account, String order) {
        Map<String, Object> made = db.queryForMap("INSERT INTO orders (client, item, quantity)"
            + " SELECT ?, o->>'item', (o->>'quantity')::int FROM (SELECT ?::jsonb) j (o)"
            + " RETURNING id, item, to_json(item)::text AS quoted", account, order);
        if (made.get("item").equals("crash")) throw new IllegalStateException("the service crashed");
        return made;
    }
}
