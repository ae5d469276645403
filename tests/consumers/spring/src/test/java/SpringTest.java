import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.mongodb.MongoException;
import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.bson.Document;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.core.NestedRuntimeException;
import org.springframework.dao.DuplicateKeyException;
import org.springframework.data.annotation.Id;
import org.springframework.data.mongodb.MongoDatabaseFactory;
import org.springframework.data.mongodb.MongoTransactionManager;
import org.springframework.data.mongodb.core.MongoTemplate;
import org.springframework.data.mongodb.core.SimpleMongoClientDatabaseFactory;
import org.springframework.data.mongodb.core.messaging.ChangeStreamRequest;
import org.springframework.data.mongodb.core.messaging.DefaultMessageListenerContainer;
import org.springframework.data.mongodb.core.messaging.Subscription;
import org.springframework.data.mongodb.core.query.Criteria;
import org.springframework.data.mongodb.core.query.Query;
import org.springframework.data.mongodb.core.query.Update;
import org.springframework.data.mongodb.repository.MongoRepository;
import org.springframework.data.mongodb.repository.config.EnableMongoRepositories;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionTemplate;

/** Spring Data MongoDB, as an application uses it, against the built server (PANDO_BIN). */
class SpringTest {
    @TempDir static Path directory;
    static Process server;
    static AnnotationConfigApplicationContext context;
    static MongoTemplate template;
    static Bank bank;

    static class Account {
        @Id String id;
        long amount;

        Account(String id, long amount) {
            this.id = id;
            this.amount = amount;
        }
    }

    interface Accounts extends MongoRepository<Account, String> {}

    /** A service whose methods are transactions, by annotation alone. */
    static class Bank {
        final Accounts accounts;
        final MongoTemplate template;

        Bank(Accounts accounts, MongoTemplate template) {
            this.accounts = accounts;
            this.template = template;
        }

        @Transactional
        public void transfer(String from, String to, long amount) {
            Account payer = accounts.findById(from).orElseThrow();
            payer.amount -= amount;
            accounts.save(payer);
            template.updateFirst(Query.query(Criteria.where("_id").is(to)), new Update().inc("amount", amount), Account.class);
            template.insert(new Document("from", from).append("amount", amount), "journal");
            if (payer.amount < 0) {
                throw new IllegalStateException("not enough");
            }
        }

        @Transactional
        public void openTwice(String id) {
            accounts.insert(new Account("first of two", 1));
            accounts.insert(new Account(id, 1));
        }

        @Transactional(readOnly = true)
        public long sum() {
            return accounts.findAll().stream().mapToLong(a -> a.amount).sum();
        }
    }

    @Configuration
    @EnableTransactionManagement
    @EnableMongoRepositories(considerNestedRepositories = true)
    static class Application {
        static String uri;

        @Bean
        MongoClient client() {
            return MongoClients.create(uri);
        }

        @Bean
        MongoDatabaseFactory factory(MongoClient client) {
            return new SimpleMongoClientDatabaseFactory(client, "spring");
        }

        @Bean
        MongoTemplate mongoTemplate(MongoDatabaseFactory factory) {
            return new MongoTemplate(factory);
        }

        @Bean
        MongoTransactionManager transactionManager(MongoDatabaseFactory factory) {
            return new MongoTransactionManager(factory);
        }

        @Bean
        Bank bank(Accounts accounts, MongoTemplate template) {
            return new Bank(accounts, template);
        }
    }

    @BeforeAll
    static void start() throws Exception {
        int port;
        try (ServerSocket probe = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            port = probe.getLocalPort();
        }
        String binary = System.getenv().getOrDefault("PANDO_BIN", "../../../target/debug/pando");
        server = new ProcessBuilder(binary, "serve", "--dbpath", directory.resolve("data").toString(), "--port", "" + port)
                .redirectErrorStream(true)
                .redirectOutput(directory.resolve("log").toFile())
                .start();
        Application.uri = "mongodb://127.0.0.1:" + port + "/?replicaSet=rs0&serverSelectionTimeoutMS=30000";
        context = new AnnotationConfigApplicationContext(Application.class);
        template = context.getBean(MongoTemplate.class);
        bank = context.getBean(Bank.class);
    }

    @AfterAll
    static void stop() throws Exception {
        context.close();
        server.destroy();
        assertTrue(server.waitFor(30, TimeUnit.SECONDS), "the server does not end");
    }

    @BeforeEach
    void open() {
        template.remove(new Query(), Account.class);
        template.remove(new Query(), "journal");
        template.insertAll(List.of(new Account("a", 100), new Account("b", 0)));
    }

    long amount(String id) {
        return template.findById(id, Account.class).amount;
    }

    @Test
    void aTransactionIsAllOrNothing() {
        bank.transfer("a", "b", 30);
        assertEquals(70, amount("a"));
        assertEquals(30, amount("b"));
        assertThrows(IllegalStateException.class, () -> bank.transfer("a", "b", 1000));
        assertEquals(70, amount("a"));
        assertEquals(30, amount("b"));
        assertEquals(1, template.count(new Query(), "journal"));
    }

    @Test
    void anErrorOfTheServerRollsBack() {
        assertThrows(DuplicateKeyException.class, () -> bank.openTwice("a"));
        assertEquals(2, template.count(new Query(), Account.class));
    }

    /** Spring repeats nothing: who conflicts is told by an exception with the driver's label. */
    static void repeatConflicts(Callable<?> transaction) throws Exception {
        for (;;) {
            try {
                transaction.call();
                return;
            } catch (NestedRuntimeException e) {
                assertTrue(e.getCause() instanceof MongoException m && m.hasErrorLabel("TransientTransactionError"), e::toString);
            }
        }
    }

    @Test
    void theSumIsConstant() throws Exception {
        ExecutorService threads = Executors.newFixedThreadPool(6);
        List<Future<?>> all = IntStream.range(0, 6).<Future<?>>mapToObj(n -> threads.submit(() -> {
            for (int i = 0; i < 10; i++) {
                repeatConflicts(() -> {
                    bank.transfer("a", "b", 1);
                    return null;
                });
                assertEquals(100, bank.sum());
            }
            return null;
        })).toList();
        for (Future<?> one : all) {
            one.get(60, TimeUnit.SECONDS);
        }
        threads.shutdown();
        assertEquals(40, amount("a"));
        assertEquals(60, amount("b"));
        assertEquals(60, template.count(new Query(), "journal"));
    }

    @Test
    void transactionTemplate() {
        TransactionTemplate transactions = new TransactionTemplate(context.getBean(MongoTransactionManager.class));
        transactions.executeWithoutResult(status -> {
            template.insert(new Account("c", 1));
            assertEquals(3, template.find(new Query(), Account.class).size());
            status.setRollbackOnly();
        });
        assertEquals(2, template.count(new Query(), Account.class));
    }

    @Test
    void aListenerHearsOfATransactionAtItsCommit() throws Exception {
        DefaultMessageListenerContainer container = new DefaultMessageListenerContainer(template);
        BlockingQueue<Document> heard = new LinkedBlockingQueue<>();
        ChangeStreamRequest<Document> request = ChangeStreamRequest.<Document>builder(m -> heard.add(m.getBody()))
                .collection("journal")
                .build();
        container.start();
        Subscription subscription = container.register(request, Document.class);
        assertTrue(subscription.await(java.time.Duration.ofSeconds(20)));
        assertThrows(IllegalStateException.class, () -> bank.transfer("a", "b", 1000));
        bank.transfer("a", "b", 5);
        Document first = heard.poll(30, TimeUnit.SECONDS);
        assertEquals(5L, first.getLong("amount"));
        container.stop();
    }
}
