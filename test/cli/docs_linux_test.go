package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode"

	"github.com/queuectl/queuectl/internal/skip"
	"github.com/queuectl/queuectl/internal/testrig"
)

// Every example in the documentation prints what its page shows. The examples of a page run in their order,
// in a new home directory.
func TestDocumentationExamplesWork(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) == 0 {
		skip.MissingRequirement(t, "sources", "needs the pages, which are with the sources; make test-long has them")
	}
	for _, page := range append(pages, "../../README.md") {
		t.Run(filepath.Base(page), func(t *testing.T) {
			raw, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			var h *docsHome
			for _, block := range testrig.FencedCodeBlockPattern.FindAllStringSubmatch(string(raw), -1) {
				switch kind, text := block[1], block[2]; kind {
				case "console":
					if h == nil {
						h = newDocsHome(t)
					}
					h.checkSessionOutput(text)
				case "toml":
					if h == nil {
						h = newDocsHome(t)
					}
					h.checkSettingsAccepted(text)
				case "sh":
					checkMakeTargets(t, text)
				case "json":
					if !json.Valid([]byte(text)) {
						t.Errorf("a block marked as JSON is not valid JSON:\n%s", text)
					}
				case "text", "cmd", "powershell": // cmd and powershell blocks are for Windows
				default:
					t.Errorf("a block is fenced as %q:\n%s", kind, text)
				}
			}
		})
	}
}

// These expressions match a link in a page with its text, a heading of a page, and the name of a test.
var (
	pageLinkPattern    = regexp.MustCompile(`\[([^\]]*)\]\(([^)\s]+)\)`)
	pageHeadingPattern = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	testNamePattern    = regexp.MustCompile(`\bTest\w+`)
)

// Every link of a page leads to an existing file and heading. If the text of a link is the name of a test, the
// linked file contains that test.
func TestDocumentationLinksWork(t *testing.T) {
	var pages []string
	for _, pattern := range []string{"../../docs/*.md", "../../docs/decisions/*.md", "../../*.md", "../../.github/*.md"} {
		some, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, some...)
	}
	if len(pages) == 0 {
		skip.MissingRequirement(t, "sources", "needs the pages, which are with the sources; make test-long has them")
	}
	for _, page := range pages {
		for _, link := range pageLinkPattern.FindAllStringSubmatch(pageProse(t, page), -1) {
			words, to := link[1], link[2]
			if strings.Contains(to, "://") {
				continue
			}
			path, anchor, anchored := strings.Cut(to, "#")
			target := page
			if path != "" {
				target = filepath.Join(filepath.Dir(page), path)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", page, to, err)
				continue
			}
			if anchored && !slices.Contains(anchorsOf(t, target), anchor) {
				t.Errorf("%s links to %s, but no heading has that anchor", page, to)
			}
			for _, name := range testNamePattern.FindAllString(words, -1) {
				raw, err := os.ReadFile(target)
				if err != nil || !bytes.Contains(raw, []byte("func "+name+"(")) {
					t.Errorf("%s names %s, which is not in %s", page, name, to)
				}
			}
		}
	}
}

// pageProse returns the text of a page without code blocks and inline code.
func pageProse(t *testing.T, page string) string {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile("`[^`\n]*`").ReplaceAllString(testrig.FencedCodeBlockPattern.ReplaceAllString(string(raw),
		""), "")
}

// anchorsOf returns the anchors of the headings of a page.
func anchorsOf(t *testing.T, page string) (names []string) {
	t.Helper()
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range pageHeadingPattern.FindAllStringSubmatch(testrig.FencedCodeBlockPattern.ReplaceAllString(string(raw),
		""), -1) {
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ', r == '-':
				return '-'
			case r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, h[1])
		names = append(names, name)
	}
	return names
}

// docsHome is a new home directory in which the examples of one page run.
type docsHome struct {
	*testing.T
	homeDir string
	binDir  string
}

func newDocsHome(t *testing.T) *docsHome {
	t.Parallel()
	dir, err := os.MkdirTemp("", "qh")
	if err != nil {
		t.Fatal(err)
	}
	h := &docsHome{t, dir, filepath.Join(dir, "bin")}
	program := testrig.BuiltProgram(t, "")
	self, err := os.Executable()
	if err == nil {
		err = errors.Join(os.Mkdir(h.binDir, 0o700), os.Mkdir(filepath.Join(dir, "work"), 0o700),
			os.Symlink(program, filepath.Join(h.binDir, "queuectl")),
			os.Symlink(program, filepath.Join(dir, "work", "queuectl")),
			os.WriteFile(filepath.Join(h.binDir, "nc"), fmt.Appendf(nil, "#!/bin/sh\nQUEUECTL_TEST_NC=1 exec %s \"$@\"\n", self),
				0o700))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, state := range []string{".local/state/queuectl", "work/demo", "work/.queuectl", "work/elsewhere"} {
			q := &testrig.Harness{TB: t, ClientPath: program, StateDir: filepath.Join(dir, state)}
			if _, err := os.Stat(q.Path("queuectl.sock")); err == nil {
				q.RunCLI("service", "stop")
			}
			q.EndServiceAndRunners()
		}
		os.RemoveAll(dir)
	})
	return h
}

// runShellLine executes a shell line in the home directory and returns its output.
func (h *docsHome) runShellLine(line string) string {
	h.Helper()
	cmd := exec.Command("/bin/sh", "-c", line)
	cmd.Dir = filepath.Join(h.homeDir, "work")
	cmd.Env = []string{"HOME=" + h.homeDir, "PATH=" + h.binDir + ":" + os.Getenv("PATH"), "LANG=C.UTF-8", "TZ=UTC",
		"USER=" + os.Getenv("USER")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// The output goes to a file. A pipe would stay open until a service that the line has started ends.
	outputFile, err := os.CreateTemp(h.homeDir, "seen-*")
	if err != nil {
		h.Fatal(err)
	}
	defer outputFile.Close()
	cmd.Stdout, cmd.Stderr = outputFile, outputFile
	done := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		h.Fatal(err)
	}
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(60 * time.Second):
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		h.Fatalf("the command does not end: %s", line)
	}
	raw, err := os.ReadFile(outputFile.Name())
	if err != nil {
		h.Fatal(err)
	}
	return string(raw)
}

// checkSessionOutput executes the command lines of a block and compares their output with the block.
func (h *docsHome) checkSessionOutput(block string) {
	h.Helper()
	for _, part := range strings.Split("\n"+block, "\n$ ")[1:] {
		line, want, _ := strings.Cut(part, "\n")
		for strings.HasSuffix(line, "\\") { // the command continues on the next line
			var nextLine string
			nextLine, want, _ = strings.Cut(want, "\n")
			line += "\n" + nextLine
		}
		if got := h.runShellLine(line); !testrig.MatchesOutput(got, want) {
			h.Errorf("$ %s\ngot:\n%s\nthe page shows:\n%s", line, got, want)
		}
	}
}

// checkSettingsAccepted checks that the program accepts a block as a settings file.
func (h *docsHome) checkSettingsAccepted(block string) {
	h.Helper()
	path := filepath.Join(h.homeDir, "settings.toml")
	if err := os.WriteFile(path, []byte(block), 0o600); err != nil {
		h.Fatal(err)
	}
	if output := h.runShellLine("queuectl config validate " + path + "; echo $?"); !strings.HasSuffix(output, "0\n") {
		h.Errorf("%s\nis not a valid settings file: %s", block, output)
	}
}

// checkMakeTargets checks that each line of a block is an existing make target.
func checkMakeTargets(t *testing.T, block string) {
	t.Helper()
	raw, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(block) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "make" || !strings.Contains("\n"+string(raw), "\n"+words[1]+":") {
			t.Errorf("%q does not name an existing make target", line)
		}
	}
}

// runNetcat sends its standard input to the Unix socket in its last argument and prints the reply, like nc -N -U.
func runNetcat() int {
	c, err := net.Dial("unix", os.Args[len(os.Args)-1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.Close()
	go func() {
		os.Stdin.WriteTo(c)
		c.(*net.UnixConn).CloseWrite()
	}()
	var received bytes.Buffer
	received.ReadFrom(c)
	os.Stdout.Write(received.Bytes())
	return 0
}
