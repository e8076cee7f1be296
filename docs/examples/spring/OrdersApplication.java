import java.nio.charset.StandardCharsets;
import java.util.*;
import javax.sql.DataSource;
import org.eclipse.jetty.server.*;
import org.eclipse.jetty.servlet.*;
import org.postgresql.ds.PGSimpleDataSource;
import org.springframework.aop.framework.ProxyFactory;
import org.springframework.context.annotation.Bean;
import org.springframework.http.*;
import org.springframework.jdbc.core.JdbcTemplate;
import org.springframework.jdbc.datasource.DataSourceTransactionManager;
import org.springframework.transaction.PlatformTransactionManager;
import org.springframework.transaction.annotation.AnnotationTransactionAttributeSource;
import org.springframework.transaction.interceptor.TransactionInterceptor;
import org.springframework.web.bind.annotation.*;
import org.springframework.web.context.support.AnnotationConfigWebApplicationContext;
import org.springframework.web.servlet.DispatcherServlet;
import org.springframework.web.servlet.mvc.method.annotation.*;

/** An application in an embedded Jetty, with the filter before its servlet. (Its beans say
    what @EnableTransactionManagement and @EnableWebMvc do, which need a newer Spring here.)

    Packages: spring-webmvc, spring-jdbc (4.3 or 5), jetty-servlet 9, postgresql; in Debian libspring-web-servlet-java,
    libspring-jdbc-java, libspring-context-java, libspring-transaction-java, libaopalliance-java, libjetty9-java, libpostgresql-jdbc-java, whose
    jars are /usr/share/java/{spring3-*,commons-logging,aopalliance,servlet-api,jetty9-*,postgresql}.jar ("spring3" is but a name: they
    are 4.3). With Spring 6 or Boot 3, javax.servlet becomes jakarta.servlet; with Boot the filter and its two beans are all that is needed.
    CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY, client text, item text, quantity int);
    export PORT=8080 JDBC_URL='jdbc:postgresql://127.0.0.1/shop?user=app&currentSchema=public,idempotency' CLASSPATH=…:classes
    javac -d classes *.java && java OrdersApplication */
public class OrdersApplication {
    @RestController
    public static class OrdersController {
        private final Orders orders;

        OrdersController(Orders orders) { this.orders = orders; }

        // A String is ISO-8859-1 where nothing else is said, to Spring 4 also in application/json.
        @RequestMapping(path = "/orders", method = RequestMethod.POST, consumes = "application/json", produces = {"application/json;charset=UTF-8", "text/plain"})
        public ResponseEntity<String> create(@RequestHeader("X-Account") String account, @RequestBody byte[] order) {
            Map<String, Object> made = orders.create(account, new String(order, StandardCharsets.UTF_8));
            if (made.get("item").equals("unicorn")) return ResponseEntity.badRequest().body("{\"error\": \"there are no unicorns\"}");
            return ResponseEntity.status(201).header("Location", "/orders/" + made.get("id"))
                .body("{\"order\": " + made.get("id") + ", \"item\": " + made.get("quoted") + "}");
        }
    }

    @Bean DataSource source() {
        PGSimpleDataSource source = new PGSimpleDataSource();
        source.setURL(System.getenv("JDBC_URL"));
        return source;
    }

    @Bean JdbcTemplate db(DataSource source) { return new JdbcTemplate(source); }
    @Bean PlatformTransactionManager manager(DataSource source) { return new DataSourceTransactionManager(source); }
    @Bean Orders orders(JdbcTemplate db, PlatformTransactionManager manager) {
        ProxyFactory proxy = new ProxyFactory(new OrderService(db));
        proxy.addAdvice(new TransactionInterceptor(manager, new AnnotationTransactionAttributeSource()));
        return (Orders) proxy.getProxy();
    }
    @Bean RequestMappingHandlerMapping mapping() { return new RequestMappingHandlerMapping(); }
    @Bean RequestMappingHandlerAdapter adapter() { return new RequestMappingHandlerAdapter(); }

    public static void main(String[] args) throws Exception {
        AnnotationConfigWebApplicationContext context = new AnnotationConfigWebApplicationContext();
        context.register(OrdersApplication.class);
        ServletContextHandler web = new ServletContextHandler();
        context.setServletContext(web.getServletContext());
        context.refresh();
        web.addServlet(new ServletHolder(new DispatcherServlet(context)), "/*");
        web.addFilter(new FilterHolder(new IdempotencyFilter(context.getBean(JdbcTemplate.class), context.getBean(PlatformTransactionManager.class))), "/orders", null);
        Server server = new Server(new java.net.InetSocketAddress("127.0.0.1", Integer.parseInt(System.getenv("PORT"))));
        server.setHandler(web);
        server.start();
    }
}
