package pando;

import com.google.gson.Gson;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.analysis.tokenattributes.PositionIncrementAttribute;
import org.apache.lucene.analysis.tokenattributes.PositionLengthAttribute;

/** For each line {analyzer, text} of the input a line of tokens: [[text, position, how many positions], …]. */
public final class Tokens {
  private Tokens() {}

  public static void main(String[] args) throws IOException {
    PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
    BufferedReader in =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    Map<JsonElement, Analyzer> analyzers = new HashMap<>();
    Gson gson = new Gson();
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      JsonObject asked = JsonParser.parseString(line).getAsJsonObject();
      Analyzer analyzer = analyzers.computeIfAbsent(asked.get("analyzer"), Analyzers::of);
      out.println(gson.toJson(tokens(analyzer, asked.get("text").getAsString())));
    }
  }

  static List<List<Object>> tokens(Analyzer analyzer, String text) throws IOException {
    List<List<Object>> all = new ArrayList<>();
    try (TokenStream stream = analyzer.tokenStream("f", text)) {
      CharTermAttribute term = stream.addAttribute(CharTermAttribute.class);
      PositionIncrementAttribute step = stream.addAttribute(PositionIncrementAttribute.class);
      PositionLengthAttribute length = stream.addAttribute(PositionLengthAttribute.class);
      stream.reset();
      int position = -1;
      while (stream.incrementToken()) {
        position += step.getPositionIncrement();
        all.add(List.of(term.toString(), position, length.getPositionLength()));
      }
      stream.end();
    }
    return all;
  }
}
