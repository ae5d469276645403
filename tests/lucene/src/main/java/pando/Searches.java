package pando;

import com.google.gson.Gson;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.StoredField;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexWriterConfig;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.FuzzyQuery;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.store.FSDirectory;
import org.apache.lucene.util.QueryBuilder;

/**
 * Indexes the texts of a file, and answers the searches of the input, one a line: [[id, score], …].
 *
 * <p>Arguments: a file of lines {id, text}, a folder for the index, how many results.
 */
public final class Searches {
  private static final String FIELD = "text";
  private static final Analyzer ANALYZER = new StandardAnalyzer();

  private Searches() {}

  public static void main(String[] args) throws IOException {
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    int most = Integer.parseInt(args[2]);
    Gson gson = new Gson();
    try (FSDirectory directory = FSDirectory.open(Path.of(args[1]))) {
      index(Path.of(args[0]), directory);
      try (DirectoryReader reader = DirectoryReader.open(directory)) {
        IndexSearcher searcher = new IndexSearcher(reader);
        BufferedReader in =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
          Query query = query(JsonParser.parseString(line).getAsJsonObject());
          List<List<Object>> found = new ArrayList<>();
          for (ScoreDoc hit : searcher.search(query, most).scoreDocs) {
            Document doc = searcher.storedFields().document(hit.doc);
            found.add(List.of(doc.getField("id").numericValue(), hit.score));
          }
          out.println(gson.toJson(found));
        }
      }
    }
  }

  private static void index(Path texts, FSDirectory directory) throws IOException {
    IndexWriterConfig config = new IndexWriterConfig(ANALYZER);
    config.setOpenMode(IndexWriterConfig.OpenMode.CREATE);
    try (IndexWriter writer = new IndexWriter(directory, config);
        BufferedReader in = Files.newBufferedReader(texts)) {
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        JsonObject text = JsonParser.parseString(line).getAsJsonObject();
        Document doc = new Document();
        doc.add(new StoredField("id", text.get("id").getAsInt()));
        doc.add(new TextField(FIELD, text.get("text").getAsString(), Field.Store.NO));
        writer.addDocument(doc);
      }
    }
  }

  /** The query of an operator. */
  private static Query query(JsonObject operator) {
    String name = operator.keySet().iterator().next();
    JsonObject spec = operator.getAsJsonObject(name);
    QueryBuilder builder = new QueryBuilder(ANALYZER);
    switch (name) {
      case "text":
        String text = spec.get("query").getAsString();
        boolean all =
            spec.has("matchCriteria") && spec.get("matchCriteria").getAsString().equals("all");
        if (!spec.has("fuzzy")) {
          return builder.createBooleanQuery(FIELD, text, all ? Occur.MUST : Occur.SHOULD);
        }
        JsonObject fuzzy = spec.getAsJsonObject("fuzzy");
        BooleanQuery.Builder words = new BooleanQuery.Builder();
        for (String word : text.split(" ")) {
          words.add(
              new FuzzyQuery(
                  new Term(FIELD, word),
                  number(fuzzy, "maxEdits", 2),
                  number(fuzzy, "prefixLength", 0),
                  number(fuzzy, "maxExpansions", 50),
                  true),
              all ? Occur.MUST : Occur.SHOULD);
        }
        return words.build();
      case "phrase":
        return builder.createPhraseQuery(
            FIELD, spec.get("query").getAsString(), number(spec, "slop", 0));
      case "compound":
        BooleanQuery.Builder clauses = new BooleanQuery.Builder();
        add(clauses, spec, "must", Occur.MUST);
        add(clauses, spec, "should", Occur.SHOULD);
        add(clauses, spec, "mustNot", Occur.MUST_NOT);
        add(clauses, spec, "filter", Occur.FILTER);
        clauses.setMinimumNumberShouldMatch(number(spec, "minimumShouldMatch", 0));
        return clauses.build();
      default:
        throw new IllegalArgumentException(name);
    }
  }

  private static void add(BooleanQuery.Builder to, JsonObject spec, String name, Occur occur) {
    JsonArray list = spec.has(name) ? spec.getAsJsonArray(name) : new JsonArray();
    for (JsonElement operator : list) {
      to.add(query(operator.getAsJsonObject()), occur);
    }
  }

  private static int number(JsonObject of, String name, int otherwise) {
    return of.has(name) ? of.get(name).getAsInt() : otherwise;
  }
}
