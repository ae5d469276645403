package pando;

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.ibm.icu.text.Normalizer2;
import java.io.Reader;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.CharArraySet;
import org.apache.lucene.analysis.LowerCaseFilter;
import org.apache.lucene.analysis.StopFilter;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.Tokenizer;
import org.apache.lucene.analysis.charfilter.HTMLStripCharFilter;
import org.apache.lucene.analysis.charfilter.MappingCharFilter;
import org.apache.lucene.analysis.charfilter.NormalizeCharMap;
import org.apache.lucene.analysis.core.FlattenGraphFilter;
import org.apache.lucene.analysis.core.KeywordAnalyzer;
import org.apache.lucene.analysis.core.KeywordTokenizer;
import org.apache.lucene.analysis.core.SimpleAnalyzer;
import org.apache.lucene.analysis.core.WhitespaceAnalyzer;
import org.apache.lucene.analysis.core.WhitespaceTokenizer;
import org.apache.lucene.analysis.email.UAX29URLEmailTokenizer;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.apache.lucene.analysis.en.EnglishPossessiveFilter;
import org.apache.lucene.analysis.en.PorterStemFilter;
import org.apache.lucene.analysis.es.SpanishPluralStemFilter;
import org.apache.lucene.analysis.fa.PersianCharFilter;
import org.apache.lucene.analysis.icu.ICUFoldingFilter;
import org.apache.lucene.analysis.icu.ICUNormalizer2CharFilter;
import org.apache.lucene.analysis.icu.ICUNormalizer2Filter;
import org.apache.lucene.analysis.miscellaneous.ASCIIFoldingFilter;
import org.apache.lucene.analysis.miscellaneous.KeywordRepeatFilter;
import org.apache.lucene.analysis.miscellaneous.LengthFilter;
import org.apache.lucene.analysis.miscellaneous.RemoveDuplicatesTokenFilter;
import org.apache.lucene.analysis.miscellaneous.TrimFilter;
import org.apache.lucene.analysis.miscellaneous.WordDelimiterGraphFilter;
import org.apache.lucene.analysis.ngram.EdgeNGramTokenFilter;
import org.apache.lucene.analysis.ngram.EdgeNGramTokenizer;
import org.apache.lucene.analysis.ngram.NGramTokenFilter;
import org.apache.lucene.analysis.ngram.NGramTokenizer;
import org.apache.lucene.analysis.pattern.PatternReplaceFilter;
import org.apache.lucene.analysis.pattern.PatternTokenizer;
import org.apache.lucene.analysis.phonetic.DaitchMokotoffSoundexFilter;
import org.apache.lucene.analysis.reverse.ReverseStringFilter;
import org.apache.lucene.analysis.shingle.ShingleFilter;
import org.apache.lucene.analysis.snowball.SnowballFilter;
import org.apache.lucene.analysis.standard.StandardAnalyzer;
import org.apache.lucene.analysis.standard.StandardTokenizer;
import org.apache.lucene.util.AttributeFactory;

/** Lucene's analyzers of a definition: a name, or an object as search indexes have them. */
final class Analyzers {
  private Analyzers() {}

  static Analyzer of(JsonElement definition) {
    if (definition.isJsonPrimitive()) {
      return named(definition.getAsString());
    }
    JsonObject custom = definition.getAsJsonObject();
    return new Analyzer() {
      @Override
      protected Reader initReader(String field, Reader reader) {
        for (JsonObject filter : objects(custom, "charFilters")) {
          reader = charFilter(filter, reader);
        }
        return reader;
      }

      @Override
      protected TokenStreamComponents createComponents(String field) {
        Tokenizer tokenizer = tokenizer(custom.getAsJsonObject("tokenizer"));
        TokenStream stream = tokenizer;
        for (JsonObject filter : objects(custom, "tokenFilters")) {
          stream = tokenFilter(filter, stream);
        }
        return new TokenStreamComponents(tokenizer, stream);
      }
    };
  }

  private static Analyzer named(String name) {
    switch (name) {
      case "lucene.standard":
        return new StandardAnalyzer();
      case "lucene.simple":
        return new SimpleAnalyzer();
      case "lucene.whitespace":
        return new WhitespaceAnalyzer();
      case "lucene.keyword":
        return new KeywordAnalyzer();
      case "lucene.english":
        return new EnglishAnalyzer();
      default:
        throw new IllegalArgumentException(name);
    }
  }

  private static List<JsonObject> objects(JsonObject of, String name) {
    List<JsonObject> out = new ArrayList<>();
    if (of.has(name)) {
      of.getAsJsonArray(name).forEach(e -> out.add(e.getAsJsonObject()));
    }
    return out;
  }

  private static Reader charFilter(JsonObject f, Reader reader) {
    switch (f.get("type").getAsString()) {
      case "htmlStrip":
        return new HTMLStripCharFilter(reader, new HashSet<>(strings(f, "ignoredTags")));
      case "icuNormalize":
        return new ICUNormalizer2CharFilter(reader);
      case "mapping":
        NormalizeCharMap.Builder map = new NormalizeCharMap.Builder();
        f.getAsJsonObject("mappings").asMap().forEach((from, to) -> map.add(from, to.getAsString()));
        return new MappingCharFilter(map.build(), reader);
      case "persian":
        return new PersianCharFilter(reader);
      default:
        throw new IllegalArgumentException(f.toString());
    }
  }

  private static Tokenizer tokenizer(JsonObject t) {
    switch (t.get("type").getAsString()) {
      case "edgeGram":
        return new EdgeNGramTokenizer(number(t, "minGram", 1), number(t, "maxGram", 2));
      case "nGram":
        return new NGramTokenizer(number(t, "minGram", 1), number(t, "maxGram", 2));
      case "keyword":
        return new KeywordTokenizer();
      case "regexCaptureGroup":
        return new PatternTokenizer(Pattern.compile(text(t, "pattern", "")), number(t, "group", 0));
      case "regexSplit":
        return new PatternTokenizer(Pattern.compile(text(t, "pattern", "")), -1);
      case "standard":
        StandardTokenizer standard = new StandardTokenizer();
        standard.setMaxTokenLength(number(t, "maxTokenLength", 255));
        return standard;
      case "uaxUrlEmail":
        UAX29URLEmailTokenizer url = new UAX29URLEmailTokenizer();
        url.setMaxTokenLength(number(t, "maxTokenLength", 255));
        return url;
      case "whitespace":
        return new WhitespaceTokenizer(
            AttributeFactory.DEFAULT_ATTRIBUTE_FACTORY, number(t, "maxTokenLength", 255));
      default:
        throw new IllegalArgumentException(t.toString());
    }
  }

  private static TokenStream tokenFilter(JsonObject f, TokenStream in) {
    boolean kept = text(f, "termNotInBounds", "omit").equals("include");
    switch (f.get("type").getAsString()) {
      case "asciiFolding":
        return new ASCIIFoldingFilter(in, text(f, "originalTokens", "omit").equals("include"));
      case "daitchMokotoffSoundex":
        return new DaitchMokotoffSoundexFilter(
            in, text(f, "originalTokens", "include").equals("include"));
      case "edgeGram":
        return new EdgeNGramTokenFilter(in, number(f, "minGram", 1), number(f, "maxGram", 2), kept);
      case "nGram":
        return new NGramTokenFilter(in, number(f, "minGram", 1), number(f, "maxGram", 2), kept);
      case "englishPossessive":
        return new EnglishPossessiveFilter(in);
      case "flattenGraph":
        return new FlattenGraphFilter(in);
      case "icuFolding":
        return new ICUFoldingFilter(in);
      case "icuNormalizer":
        return new ICUNormalizer2Filter(in, normalizer(text(f, "normalizationForm", "nfc")));
      case "keywordRepeat":
        return new KeywordRepeatFilter(in);
      case "length":
        return new LengthFilter(in, number(f, "min", 0), number(f, "max", 255));
      case "lowercase":
        return new LowerCaseFilter(in);
      case "porterStemming":
        return new PorterStemFilter(in);
      case "regex":
        return new PatternReplaceFilter(
            in,
            Pattern.compile(text(f, "pattern", "")),
            text(f, "replacement", ""),
            text(f, "matches", "all").equals("all"));
      case "removeDuplicates":
        return new RemoveDuplicatesTokenFilter(in);
      case "reverse":
        return new ReverseStringFilter(in);
      case "shingle":
        return new ShingleFilter(in, number(f, "minShingleSize", 2), number(f, "maxShingleSize", 2));
      case "snowballStemming":
        String stemmer = text(f, "stemmerName", "english");
        return new SnowballFilter(in, stemmer.substring(0, 1).toUpperCase() + stemmer.substring(1));
      case "spanishPluralStemming":
        return new SpanishPluralStemFilter(in);
      case "stopword":
        boolean ignoreCase = flag(f, "ignoreCase", true);
        return new StopFilter(in, new CharArraySet(strings(f, "tokens"), ignoreCase));
      case "trim":
        return new TrimFilter(in);
      case "wordDelimiterGraph":
        return delimiter(f, in);
      default:
        throw new IllegalArgumentException(f.toString());
    }
  }

  private static Normalizer2 normalizer(String form) {
    switch (form) {
      case "nfd":
        return Normalizer2.getNFDInstance();
      case "nfkc":
        return Normalizer2.getNFKCInstance();
      case "nfkd":
        return Normalizer2.getNFKDInstance();
      default:
        return Normalizer2.getNFCInstance();
    }
  }

  private static TokenStream delimiter(JsonObject f, TokenStream in) {
    JsonObject o = f.has("delimiterOptions") ? f.getAsJsonObject("delimiterOptions") : new JsonObject();
    int flags = 0;
    Object[][] known = {
      {"generateWordParts", true, WordDelimiterGraphFilter.GENERATE_WORD_PARTS},
      {"generateNumberParts", true, WordDelimiterGraphFilter.GENERATE_NUMBER_PARTS},
      {"concatenateWords", false, WordDelimiterGraphFilter.CATENATE_WORDS},
      {"concatenateNumbers", false, WordDelimiterGraphFilter.CATENATE_NUMBERS},
      {"concatenateAll", false, WordDelimiterGraphFilter.CATENATE_ALL},
      {"preserveOriginal", true, WordDelimiterGraphFilter.PRESERVE_ORIGINAL},
      {"splitOnCaseChange", true, WordDelimiterGraphFilter.SPLIT_ON_CASE_CHANGE},
      {"splitOnNumerics", true, WordDelimiterGraphFilter.SPLIT_ON_NUMERICS},
      {"stemEnglishPossessive", true, WordDelimiterGraphFilter.STEM_ENGLISH_POSSESSIVE},
      {"ignoreKeywords", false, WordDelimiterGraphFilter.IGNORE_KEYWORDS},
    };
    for (Object[] one : known) {
      flags |= flag(o, (String) one[0], (Boolean) one[1]) ? (Integer) one[2] : 0;
    }
    CharArraySet kept = null;
    if (f.has("protectedWords")) {
      JsonObject words = f.getAsJsonObject("protectedWords");
      kept = new CharArraySet(strings(words, "words"), flag(words, "ignoreCase", true));
    }
    return new WordDelimiterGraphFilter(in, flags, kept);
  }

  private static int number(JsonObject of, String name, int otherwise) {
    return of.has(name) ? of.get(name).getAsInt() : otherwise;
  }

  private static boolean flag(JsonObject of, String name, boolean otherwise) {
    return of.has(name) ? of.get(name).getAsBoolean() : otherwise;
  }

  private static String text(JsonObject of, String name, String otherwise) {
    return of.has(name) ? of.get(name).getAsString() : otherwise;
  }

  private static Set<String> strings(JsonObject of, String name) {
    Set<String> out = new HashSet<>();
    JsonArray list = of.has(name) ? of.getAsJsonArray(name) : new JsonArray();
    list.forEach(e -> out.add(e.getAsString()));
    return out;
  }
}
