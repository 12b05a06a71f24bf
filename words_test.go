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

// avoidedPhrase is a row of testdata/avoided_phrases.tsv: an expression that matches a phrase, and the words to
// use instead.
type avoidedPhrase struct {
	phrase      *regexp.Regexp
	replacement string
}

// avoidedPhrases returns the rows of the table of avoided phrases.
func avoidedPhrases(t *testing.T) (all []avoidedPhrase) {
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
	allowedInMessages = 1.0
	allowedInPages    = 1.5
	// allowedInCode applies to comments, identifiers and strings in Go files. It may be lowered but not raised.
	allowedInCode = 0.3
)

// findPhrases returns the avoided phrases in the text of a file, each with its replacement.
func findPhrases(file, text string, phrases []avoidedPhrase) (hits []string) {
	if strings.Contains(file, "windows") {
		text = folderWord.ReplaceAllString(text, "")
	}
	for _, a := range phrases {
		for _, phrase := range a.phrase.FindAllString(text, -1) {
			hits = append(hits, strconv.Quote(phrase)+" (better: "+a.replacement+")")
		}
	}
	return hits
}

// folderWord matches a word for directories that is common on Windows. Only files for Windows may use it.
var folderWord = regexp.MustCompile(`(?i)\bfolders?\b`)

// Messages, help texts and log lines contain few phrases that are hard to understand.
func TestMessagesAvoidPhrases(t *testing.T) {
	phrases, words, hits := avoidedPhrases(t), 0, []string{}
	for _, m := range messages(t) {
		words += len(strings.Fields(m.text))
		for _, hit := range findPhrases(m.file, m.text, phrases) {
			hits = append(hits, m.file+":"+strconv.Itoa(m.line)+": "+hit)
		}
	}
	checkPhraseRate(t, words, hits, allowedInMessages)
}

// The documentation contains few phrases that are hard to understand.
func TestPagesAvoidPhrases(t *testing.T) {
	phrases, words, hits := avoidedPhrases(t), 0, []string{}
	for _, page := range pages(t) {
		for i, line := range strings.Split(withoutBlocks(t, page), "\n") {
			words += len(strings.Fields(line))
			for _, hit := range findPhrases(page, line, phrases) {
				hits = append(hits, page+":"+strconv.Itoa(i+1)+": "+hit)
			}
		}
	}
	checkPhraseRate(t, words, hits, allowedInPages)
}

// Comments, identifiers and strings in Go files contain few phrases that are hard to understand.
func TestCodeAvoidsPhrases(t *testing.T) {
	t.Parallel()
	skip.IfShort(t, "takes long; make check runs it")
	phrases, words, hits, byDir := avoidedPhrases(t), 0, 0, map[string]int{}
	for file := range sources(t) {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := camelCase.ReplaceAllString(string(raw), "$1 $2")
		words += len(strings.Fields(text))
		n := len(findPhrases(file, text, phrases))
		hits += n
		byDir[filepath.Dir(file)] += n
	}
	if perThousand := 1000 * float64(hits) / float64(words); perThousand > allowedInCode {
		t.Errorf("%d phrases in %d words of code, %.2f per 1,000; at most %.1f are allowed; by directory: %v",
			hits, words, perThousand, allowedInCode, byDir)
	}
}

// camelCase matches the boundary between two words of an identifier.
var camelCase = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// checkPhraseRate fails the test if more avoided phrases than allowed occur in 1,000 words.
func checkPhraseRate(t *testing.T, words int, hits []string, allowed float64) {
	t.Helper()
	if words < 1000 {
		t.Fatalf("only %d words were read", words)
	}
	if perThousand := 1000 * float64(len(hits)) / float64(words); perThousand > allowed {
		t.Errorf("%d phrases in %d words, %.1f per 1,000; at most %.1f are allowed:\n%s",
			len(hits), words, perThousand, allowed, strings.Join(hits, "\n"))
	}
}

// On each page, a sentence has at most 16 words on average, and at most 6 % of the sentences have more than 30
// words.
func TestSentencesOfPagesAreShort(t *testing.T) {
	for _, page := range pages(t) {
		count, words, long := 0, 0, []string{}
		for _, s := range sentences(withoutBlocks(t, page)) {
			n := len(word.FindAllString(s, -1))
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
func TestPagesStayShort(t *testing.T) {
	for _, page := range pages(t) {
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
func TestDecisionRecordsExist(t *testing.T) {
	record, references := regexp.MustCompile(`docs/decisions/(\d{4})`), 0
	for file := range sources(t) {
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

// message is a text in a shipped program, with its position.
type message struct {
	file string
	line int
	text string
}

// uncheckedDirs lists the directories whose programs are not shipped. The tests do not check the messages of
// these programs.
var uncheckedDirs = []string{"bench", "test", "store/storetest", "store/memstore", "tools",
	"packaging/test"}

// sqlText matches the beginning of an SQL statement.
var sqlText = regexp.MustCompile(
	`^\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|WITH|DROP|ALTER|BEGIN|COMMIT|PRAGMA|LOCK|SET|TRUNCATE|DO|VALUES|FROM|WHERE|AND|ON)\b`)

// messages returns the string literals of three words or more in the shipped programs, except SQL. If literals
// are concatenated, they form one text.
func messages(t *testing.T) (all []message) {
	t.Helper()
	files := token.NewFileSet()
	for file := range sources(t) {
		if strings.HasSuffix(file, "_test.go") || slices.ContainsFunc(uncheckedDirs,
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
				text := literals(n.(ast.Expr))
				if len(strings.Fields(text)) >= 3 && !sqlText.MatchString(text) {
					all = append(all, message{file, files.Position(n.Pos()).Line, text})
				}
				return text == ""
			}
			return true
		})
	}
	return all
}

// literals returns the text of an expression that is a string literal or a concatenation of literals.
func literals(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return literals(e.X) + literals(e.Y)
		}
	}
	return ""
}

// pages returns the Markdown files of the project.
func pages(t *testing.T) (all []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", ".github/*.md", ".github/*/*.md"} {
		files, err := fs.Glob(os.DirFS("."), pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, files...)
	}
	if len(all) < 10 {
		t.Fatalf("only %d pages were found", len(all))
	}
	return all
}

// withoutBlocks returns the text of a page. Its code blocks are replaced by empty lines, so that the line
// numbers stay the same.
func withoutBlocks(t *testing.T, page string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.FromSlash(page))
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
	word        = regexp.MustCompile(`[A-Za-z0-9][\w'’-]*`)
	code        = regexp.MustCompile("`[^`]*`")
	link        = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	item        = regexp.MustCompile(`^([-*+]|\d+\.)\s+`)
	ruler       = regexp.MustCompile(`^\|?[\s:|-]+\|?$`)
	sentenceEnd = regexp.MustCompile(`[.!?][")'*_]*\s+[A-Z0-9"'(*]`)
)

// sentences splits the text of a page: paragraphs and list items into sentences, and tables into cells. Inline
// code counts as one word. Headings are omitted.
func sentences(text string) (all []string) {
	var paragraph []string
	end := func() {
		all = append(all, split(strings.Join(paragraph, " "))...)
		paragraph = nil
	}
	for line := range strings.SplitSeq(text, "\n") {
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#") || strings.HasPrefix(line, "<!--") || ruler.MatchString(line):
			end()
		case strings.HasPrefix(line, "|"):
			end()
			for cell := range strings.SplitSeq(strings.Trim(line, "|"), "|") {
				all = append(all, split(cell)...)
			}
		default:
			if item.MatchString(line) {
				end()
			}
			paragraph = append(paragraph, item.ReplaceAllString(line, ""))
		}
	}
	end()
	return all
}

// split splits a paragraph of Markdown into sentences, in which inline code counts as one word.
func split(paragraph string) (all []string) {
	rest := link.ReplaceAllString(code.ReplaceAllString(paragraph, "Code"), "$1")
	for {
		at := sentenceEnd.FindStringIndex(rest)
		if at == nil {
			return append(all, strings.TrimSpace(rest))
		}
		all = append(all, strings.TrimSpace(rest[:at[1]-1]))
		rest = rest[at[1]-1:]
	}
}
