import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.store.MMapDirectory;
import org.apache.lucene.util.QueryBuilder;

/**
 * Lucene in a process of its own, for search.py: indexes the lines of a file, says in how many seconds and with how much CPU, and then
 * searches for as long as each line of its input says ("KIND SECONDS"): how many searches, in how many seconds.
 *
 * <p>Arguments: the texts, the searches (kind, words, how many texts there must be), a folder for the index.
 */
final class Lucene {
  private static final String FIELD = "text";
  private static final int PAGE = 10;

  public static void main(String[] args) throws IOException {
    StandardAnalyzer analyzer = new StandardAnalyzer();
    try (MMapDirectory directory = new MMapDirectory(Path.of(args[2]))) {
      long began = System.nanoTime();
      double used = cpu();
      try (IndexWriter writer = new IndexWriter(directory, new IndexWriterConfig(analyzer));
          BufferedReader in = Files.newBufferedReader(Path.of(args[0]))) {
        for (String line = in.readLine(); line != null; line = in.readLine()) {
          Document document = new Document();
          document.add(new TextField(FIELD, line, Field.Store.YES));
          writer.addDocument(document);
        }
      }
      double built = seconds(began);
      used = cpu() - used;
      try (DirectoryReader reader = DirectoryReader.open(directory)) {
        IndexSearcher searcher = new IndexSearcher(reader);
        Map<String, List<Query>> queries = checked(searcher, new QueryBuilder(analyzer), args[1]);
        System.out.println(built + " " + used);
        serve(searcher, queries);
      }
    }
  }

  /** The searches by kind, each of which finds what it must. */
  private static Map<String, List<Query>> checked(
      IndexSearcher searcher, QueryBuilder builder, String path) throws IOException {
    Map<String, List<Query>> all = new HashMap<>();
    for (String line : Files.readAllLines(Path.of(path))) {
      String[] parts = line.split("\t");
      Query query =
          switch (parts[0]) {
            case "phrase" -> builder.createPhraseQuery(FIELD, parts[1]);
            case "both" -> builder.createBooleanQuery(FIELD, parts[1], Occur.MUST);
            default -> builder.createBooleanQuery(FIELD, parts[1], Occur.SHOULD);
          };
      List<String> found = texts(searcher, query);
      boolean have = true;
      for (String text : found) {
        boolean one = false;
        boolean every = true;
        for (String word : parts[1].split(" ")) {
          boolean there = text.toLowerCase().contains(word);
          one |= there;
          every &= there;
        }
        have &= parts[0].equals("either") ? one : every;
      }
      if (!have || found.size() < Integer.parseInt(parts[2])) {
        throw new IllegalStateException(line + ": " + found);
      }
      all.computeIfAbsent(parts[0], kind -> new ArrayList<>()).add(query);
    }
    return all;
  }

  private static void serve(IndexSearcher searcher, Map<String, List<Query>> queries)
      throws IOException {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] parts = line.split(" ");
      List<Query> own = queries.get(parts[0]);
      double wanted = Double.parseDouble(parts[1]);
      long began = System.nanoTime();
      int count = 0;
      while (seconds(began) < wanted) {
        texts(searcher, own.get(count++ % own.size()));
      }
      System.out.println(count + " " + seconds(began));
    }
  }

  private static List<String> texts(IndexSearcher searcher, Query query) throws IOException {
    List<String> found = new ArrayList<>();
    for (ScoreDoc hit : searcher.search(query, PAGE).scoreDocs) {
      found.add(searcher.storedFields().document(hit.doc).get(FIELD));
    }
    return found;
  }

  private static double seconds(long began) {
    return (System.nanoTime() - began) / 1e9;
  }

  private static double cpu() {
    var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
    return system.getProcessCpuTime() / 1e9;
  }
}
