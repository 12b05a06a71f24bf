package queuectl

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/queuectl/queuectl/internal/skip"
)

// avoidedPhrase is a row of testdata/avoided_phrases.tsv: a pattern that matches a phrase, and the words to use instead
// of the phrase.
type avoidedPhrase struct {
	pattern     *regexp.Regexp
	replacement string
}

// readAvoidedPhrases returns the rows of the table of avoided phrases.
func readAvoidedPhrases(t *testing.T) (all []avoidedPhrase) {
	t.Helper()
	raw, err := os.ReadFile("testdata/avoided_phrases.tsv")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(raw)) {
		if phrase, instead, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			all = append(all, avoidedPhrase{regexp.MustCompile("(?i)" + phrase), instead})
		}
	}
	if len(all) < 20 {
		t.Fatalf("only %d phrases were read", len(all))
	}
	return all
}

// These constants are the maximum numbers of avoided phrases in 1,000 words.
const (
	maxPhrasesPer1000MessageWords = 1.0
	maxPhrasesPer1000PageWords    = 1.5
	// maxPhrasesPer1000CodeWords applies to comments, identifiers and strings in Go files. It may be lowered but not
	// raised.
	maxPhrasesPer1000CodeWords = 0.3
)

// findAvoidedPhrases returns the avoided phrases in the text of a file, each with the words to use instead.
func findAvoidedPhrases(fileName, text string, phrases []avoidedPhrase) (foundPhrases []string) {
	if strings.Contains(fileName, "windows") {
		text = folderWordPattern.ReplaceAllString(text, "")
	}
	for _, a := range phrases {
		for _, phrase := range a.pattern.FindAllString(text, -1) {
			foundPhrases = append(foundPhrases, strconv.Quote(phrase)+" (better: "+a.replacement+")")
		}
	}
	return foundPhrases
}

// folderWordPattern matches a word for directories that is common on Windows. Only files for Windows may use it.
var folderWordPattern = regexp.MustCompile(`(?i)\bfolders?\b`)

// Messages, help texts and log lines contain few phrases that are hard to understand.
func TestMessagesContainFewAvoidedPhrases(t *testing.T) {
	phrases, words, hits := readAvoidedPhrases(t), 0, []string{}
	for _, m := range readProgramMessages(t) {
		words += len(strings.Fields(m.text))
		for _, hit := range findAvoidedPhrases(m.fileName, m.text, phrases) {
			hits = append(hits, m.fileName+":"+strconv.Itoa(m.lineNumber)+": "+hit)
		}
	}
	checkPhraseRate(t, words, hits, maxPhrasesPer1000MessageWords)
}

// The documentation contains few phrases that are hard to understand.
func TestDocsContainFewAvoidedPhrases(t *testing.T) {
	phrases, words, hits := readAvoidedPhrases(t), 0, []string{}
	for _, page := range findMarkdownPages(t) {
		for i, line := range strings.Split(pageWithoutCodeBlocks(t, page), "\n") {
			words += len(strings.Fields(line))
			for _, hit := range findAvoidedPhrases(page, line, phrases) {
				hits = append(hits, page+":"+strconv.Itoa(i+1)+": "+hit)
			}
		}
	}
	checkPhraseRate(t, words, hits, maxPhrasesPer1000PageWords)
}

// Comments, identifiers and strings in Go files contain few phrases that are hard to understand.
func TestCodeContainsFewAvoidedPhrases(t *testing.T) {
	t.Parallel()
	skip.IfShort(t, "takes long; make check runs it")
	phrases, words, hits, byDir := readAvoidedPhrases(t), 0, 0, map[string]int{}
	for file := range importsByGoFile(t) {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := camelCaseBoundaryPattern.ReplaceAllString(string(raw), "$1 $2")
		words += len(strings.Fields(text))
		n := len(findAvoidedPhrases(file, text, phrases))
		hits += n
		byDir[filepath.Dir(file)] += n
	}
	if perThousand := 1000 * float64(hits) / float64(words); perThousand > maxPhrasesPer1000CodeWords {
		t.Errorf("%d phrases in %d words of code, %.2f per 1,000; at most %.1f are allowed; by directory: %v",
			hits, words, perThousand, maxPhrasesPer1000CodeWords, byDir)
	}
}

// camelCaseBoundaryPattern matches the boundary between two words of an identifier.
var camelCaseBoundaryPattern = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// checkPhraseRate fails the test if the text that was checked contains more than maxPer1000Words avoided phrases in
// 1,000 words.
func checkPhraseRate(t *testing.T, wordCount int, foundPhrases []string, maxPer1000Words float64) {
	t.Helper()
	if wordCount < 1000 {
		t.Fatalf("only %d words were read", wordCount)
	}
	if perThousand := 1000 * float64(len(foundPhrases)) / float64(wordCount); perThousand > maxPer1000Words {
		t.Errorf("%d phrases in %d words, %.1f per 1,000; at most %.1f are allowed:\n%s",
			len(foundPhrases), wordCount, perThousand, maxPer1000Words, strings.Join(foundPhrases, "\n"))
	}
}

// On each page, a sentence has at most 16 words on average, and at most 6 % of the sentences have more than 30
// words.
func TestSentencesInDocsAreShort(t *testing.T) {
	for _, page := range findMarkdownPages(t) {
		count, words, long := 0, 0, []string{}
		for _, s := range splitPageIntoSentences(pageWithoutCodeBlocks(t, page)) {
			n := len(wordPattern.FindAllString(s, -1))
			if n < 4 {
				continue // a table cell or the title of an item, not a sentence
			}
			count++
			words += n
			if n > 30 {
				long = append(long, s)
			}
		}
		if count > 0 && (float64(words) > 16*float64(count) || len(long) > 1 && 100*len(long) > 6*count) {
			t.Errorf("%s: the mean sentence has %.1f words, and %d of %d have more than 30:\n%s",
				page, float64(words)/float64(count), len(long), count, strings.Join(long, "\n"))
		}
	}
}

// The README, the changelog and each decision record have a maximum length.
func TestDocsStayShort(t *testing.T) {
	for _, page := range findMarkdownPages(t) {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		words, lines := len(strings.Fields(string(raw))), strings.Count(string(raw), "\n")
		switch {
		case page == "README.md" && words > 700:
			t.Errorf("%s has %d words; at most 700 are allowed", page, words)
		case page == "CHANGELOG.md" && lines > 80:
			t.Errorf("%s has %d lines; at most 80 are allowed", page, lines)
		case strings.HasPrefix(page, "docs/decisions/") && lines > 40:
			t.Errorf("%s has %d lines; at most 40 are allowed", page, lines)
		}
	}
}

// Every decision record to which code refers exists.
func TestReferencedDecisionRecordsExist(t *testing.T) {
	record, references := regexp.MustCompile(`docs/decisions/(\d{4})`), 0
	for file := range importsByGoFile(t) {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range record.FindAllStringSubmatch(string(raw), -1) {
			references++
			if files, err := filepath.Glob("docs/decisions/" + m[1] + "-*.md"); err != nil || len(files) != 1 {
				t.Errorf("%s refers to decision record %s: got files %v, %v, want one", file, m[1], files, err)
			}
		}
	}
	if references < 50 {
		t.Errorf("only %d references to decision records were found", references)
	}
}

// messageText is a text in a shipped program, with its position.
type messageText struct {
	fileName   string
	lineNumber int
	text       string
}

// dirsWithUncheckedMessages lists the directories of programs that are not shipped. The tests do not check the messages
// of these programs.
var dirsWithUncheckedMessages = []string{"bench", "test", "store/storetest", "store/memstore", "tools",
	"packaging/test"}

// sqlStatementStartPattern matches the beginning of an SQL statement.
var sqlStatementStartPattern = regexp.MustCompile(
	`^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|WITH|DROP|ALTER|BEGIN|COMMIT|PRAGMA|LOCK|SET|TRUNCATE|DO|VALUES|FROM|WHERE|AND|ON)\b`)

// readProgramMessages returns the string literals of three words or more in the shipped programs, except SQL. If
// literals are concatenated, they form one text.
func readProgramMessages(t *testing.T) (messages []messageText) {
	t.Helper()
	files := token.NewFileSet()
	for file := range importsByGoFile(t) {
		if strings.HasSuffix(file, "_test.go") || slices.ContainsFunc(dirsWithUncheckedMessages,
			func(dir string) bool { return strings.HasPrefix(file, dir+"/") }) {
			continue
		}
		f, err := parser.ParseFile(files, file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ImportSpec:
				return false
			case *ast.BasicLit, *ast.BinaryExpr:
				text := literalText(n.(ast.Expr))
				if len(strings.Fields(text)) >= 3 && !sqlStatementStartPattern.MatchString(text) {
					messages = append(messages, messageText{file, files.Position(n.Pos()).Line, text})
				}
				return text == ""
			}
			return true
		})
	}
	return messages
}

// literalText returns the text of an expression that is a string literal or a concatenation of literals.
func literalText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return literalText(e.X) + literalText(e.Y)
		}
	}
	return ""
}

// findMarkdownPages returns the Markdown files of the project.
func findMarkdownPages(t *testing.T) (paths []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", ".github/*.md", ".github/*/*.md"} {
		files, err := fs.Glob(os.DirFS("."), pattern)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, files...)
	}
	if len(paths) < 10 {
		t.Fatalf("only %d pages were found", len(paths))
	}
	return paths
}

// pageWithoutCodeBlocks returns the text of a page. Its code blocks are replaced by empty lines, so that the line
// numbers stay the same.
func pageWithoutCodeBlocks(t *testing.T, pagePath string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.FromSlash(pagePath))
	if err != nil {
		t.Fatal(err)
	}
	lines, block := strings.Split(string(raw), "\n"), false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence || block {
			lines[i] = ""
		}
		block = block != fence
	}
	return strings.Join(lines, "\n")
}

// These expressions match parts of Markdown pages.
var (
	wordPattern           = regexp.MustCompile(`[A-Za-z0-9][\w'’-]*`)
	inlineCodePattern     = regexp.MustCompile("`[^`]*`")
	linkPattern           = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	listItemPattern       = regexp.MustCompile(`^([-*+]|\d+\.)\s+`)
	tableSeparatorPattern = regexp.MustCompile(`^\|?[\s:|-]+\|?$`)
	sentenceEndPattern    = regexp.MustCompile(`[.!?][")'*_]*\s+[A-Z0-9"'(*]`)
)

// splitPageIntoSentences splits the text of a page: paragraphs and list items into sentences, and table rows into
// cells. Inline code counts as one word. Headings are omitted.
func splitPageIntoSentences(pageText string) (sentences []string) {
	var paragraph []string
	end := func() {
		sentences = append(sentences, splitParagraphIntoSentences(strings.Join(paragraph, " "))...)
		paragraph = nil
	}
	for line := range strings.SplitSeq(pageText, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "<!--") ||
			tableSeparatorPattern.MatchString(line):
			end()
		case strings.HasPrefix(line, "|"):
			end()
			for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
				sentences = append(sentences, splitParagraphIntoSentences(cell)...)
			}
		default:
			if listItemPattern.MatchString(line) {
				end()
			}
			paragraph = append(paragraph, listItemPattern.ReplaceAllString(line, ""))
		}
	}
	end()
	return sentences
}

// splitParagraphIntoSentences splits a paragraph of Markdown into sentences, in which inline code counts as one word.
func splitParagraphIntoSentences(paragraph string) (sentences []string) {
	rest := linkPattern.ReplaceAllString(inlineCodePattern.ReplaceAllString(paragraph, "Code"), "$1")
	for {
		at := sentenceEndPattern.FindStringIndex(rest)
		if at == nil {
			return append(sentences, strings.TrimSpace(rest))
		}
		sentences = append(sentences, strings.TrimSpace(rest[:at[1]-1]))
		rest = rest[at[1]-1:]
	}
}
