//go:build linux || windows

package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/queuectl/queuectl/internal/testrig"
)

// completions returns the completions for args. The last element of args is the incomplete word.
func completions(q *testrig.Harness, args ...string) (candidates []string) {
	q.Helper()
	for line := range strings.Lines(q.MustRunCLI(append([]string{"__complete"}, args...)...)) {
		if name, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); name != "" && name[0] != ':' {
			candidates = append(candidates, name)
		}
	}
	return candidates
}

// Shells can complete commands, states, settings, and flags that have a fixed set of values. They complete the
// ids of the jobs to which the command applies. Completion does not start a service.
func TestShellCompletionOffersMatchingWords(t *testing.T) {
	q := testrig.StartQueue(t, "--workers", "0")
	for _, id := range []string{"a1", "a2", "b1"} {
		q.MustRunCLI("enqueue", "--id", id, "true")
	}
	q.MustRunCLI("hold", "a2")
	q.MustRunCLI("enqueue", "--id", "c", "-Q", "gpu", "--batch", "pics", "--in", "1h", "true")
	for words, want := range map[string]string{
		"show a": "a2 a1", "hold ": "c b1 a1", "release ": "a2", "cancel a1 ": "c b1 a2", "logs b": "b1", "dlq retry ": "",
		"list -s pro": "processing", "config get backoff_m": "backoff_max", "config set workers ": "",
		"rel": "release reload", "completion f": "fish",
		"worker st": "start stop", "enqueue --on-lost ": "retry dead hold", "run --on-lost h": "hold",
		"edit a1 --backoff-strategy l": "linear",
		"stats --by ":                  "minute hour day", "stats -Q def": "default",
		"enqueue -Q g": "gpu", "list --queue gp": "gpu", "edit --where-queue d": "default", "wait --batch p": "pics",
		"enqueue --after-batch pi": "pics",
		"enqueue --after a":        "a2 a1", "enqueue --after-any a1,": "a1,c a1,b1 a1,a2", "run --depends-on b": "b1",
	} {
		got := completions(q, append([]string{"--dir", q.StateDir}, strings.Split(words, " ")...)...)
		filtered := slices.DeleteFunc(got, func(s string) bool {
			last := words[strings.LastIndexByte(words, ' ')+1:]
			return !strings.HasPrefix(s, last) // a shell ignores candidates that do not begin with the incomplete word
		})
		if strings.Join(filtered, " ") != want {
			t.Errorf("completions of %q: %q, want %q", words, filtered, want)
		}
	}
	// The completion script works without the package bash-completion.
	if bash, err := exec.LookPath("bash"); err == nil && runtime.GOOS != "windows" {
		for line, want := range map[string]string{"queuectl stat": "status", "queuectl list --queue=g": "gpu",
			"queuectl list -Q g": "gpu", "queuectl run --on-lost=ho": "hold", "queuectl show ": "c"} {
			script := q.WriteFile("complete.sh", `unset -f _get_comp_words_by_ref _filedir _init_completion
source <("$1" completion bash)
queuectl() { "$QUEUECTL" --dir "$DIR" "$@"; }
COMP_LINE=$2 COMP_POINT=${#2}
COMP_WORDS=($(sed 's/=/ = /' <<<"$2")) # as bash splits them
[[ $2 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]}-1)) COMP_TYPE=9
__start_queuectl 2>/dev/null
echo "${COMPREPLY[0]%% *}"`)
			cmd := exec.Command(bash, "--norc", "--noprofile", script, q.ClientPath, line)
			cmd.Env = append(os.Environ(), "QUEUECTL="+q.ClientPath, "DIR="+q.StateDir)
			if out, err := cmd.Output(); err != nil || strings.TrimSpace(string(out)) != want {
				t.Errorf("bash completes %q to %q, %v, want %q", line, out, err, want)
			}
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		script := q.MustRunCLI("completion", shell)
		if !strings.Contains(script, "queuectl") {
			t.Errorf("completion script for %s: %.100q", shell, script)
		}
		path, err := exec.LookPath(shell)
		if err != nil || shell == "powershell" {
			continue
		}
		cmd := exec.Command(path, "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s cannot read its completion script: %v, %s", shell, err, out)
		}
	}
	q.StopService()
	home := t.TempDir()
	cmd := exec.Command(q.ClientPath, "__complete", "show", "")
	cmd.Env = testrig.UserEnvironment(home)
	if r := testrig.RunCommand(t, cmd); r.ExitCode != 0 || r.Stdout != ":36\n" {
		t.Errorf("completion without a service: %+v", r)
	}
	if entries, err := os.ReadDir(home); err != nil || len(entries) > 0 {
		t.Errorf("completion left %v in the home directory (%v)", entries, err)
	}
}

// Each command has a manual page. Two runs of the generator give the same pages.
func TestEveryCommandHasManualPage(t *testing.T) {
	q := testrig.NewHarness(t, "")
	pages := func() map[string]string {
		dir := t.TempDir()
		q.MustRunCLI("man", dir)
		files, err := filepath.Glob(filepath.Join(dir, "*.1"))
		if err != nil || len(files) < 40 {
			t.Fatalf("%d manual pages, %v", len(files), err)
		}
		text := map[string]string{}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			text[filepath.Base(f)] = string(raw)
		}
		return text
	}
	first, second := pages(), pages()
	for name, text := range first {
		if text != second[name] || !strings.HasPrefix(text, ".TH QUEUECTL") {
			t.Errorf("manual page %s: first %.80q, then %.80q", name, text, second[name])
		}
	}
	if !strings.Contains(first["queuectl-edit.1"], "$EDITOR") {
		t.Error("the manual page of edit does not mention $EDITOR")
	}
	for _, named := range []string{"/etc/queuectl/queuectl.toml", "/etc/queuectl/runner.conf", "\n.B queuectl\\-admin\n"} {
		if !strings.Contains(first["queuectl.1"], named) {
			t.Errorf("the manual page queuectl.1 does not contain %q", named)
		}
	}
	if r := q.RunCLI("man", q.WriteFile("file", "")+"/below"); r.ExitCode == 0 || !strings.Contains(r.Stderr, "file") {
		t.Errorf("man into a directory below a file: %+v, want an error that names the file", r)
	}
}

// The help and the manual page of every command have an example. No line of the help is wider than
// a terminal. The flag -h prints the same as --help.
func TestEveryVerbHasAnExample(t *testing.T) {
	testrig.SkipIfShort(t)
	t.Parallel()
	q := testrig.NewHarness(t, "")
	pages := t.TempDir()
	q.MustRunCLI("man", pages)
	files, err := filepath.Glob(filepath.Join(pages, "*.1"))
	if err != nil || len(files) < 40 {
		t.Fatalf("%d manual pages, %v", len(files), err)
	}
	for _, f := range files {
		page, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Split(strings.TrimSuffix(filepath.Base(f), ".1"), "-")
		hasExample := func(text string) bool {
			before, usage, _ := strings.Cut(text, "\nUsage:\n")
			_, after, _ := strings.Cut(usage, "\n")
			for line := range strings.Lines(before + "\n" + after) {
				if strings.HasPrefix(line, "  ") && strings.Contains(line, strings.Join(words, " ")) {
					return true
				}
			}
			return false
		}
		if !hasExample(string(page)) {
			t.Errorf("%s has no example\n%s", f, page)
		}
		help, short, all := q.RunCLI(append(words[1:], "--help")...), q.RunCLI(append(words[1:], "-h")...),
			q.RunCLI(append(words[1:], "--help", "--all")...)
		if help.ExitCode != 0 || !hasExample(help.Stdout) {
			t.Errorf("the help of %q has no example (exit code %d)\n%s", words, help.ExitCode, help.Stdout)
		}
		if short.Stdout != help.Stdout {
			t.Errorf("-h of %q prints\n%s\n--help prints\n%s", words, short.Stdout, help.Stdout)
		}
		if all.ExitCode != 0 || len(all.Stdout) < len(help.Stdout) || !strings.Contains(all.Stdout, "\nGlobal flags:\n") &&
			len(words) > 1 {
			t.Errorf("--help --all of %q (exit code %d)\n%s", words, all.ExitCode, all.Stdout)
		}
		for line := range strings.Lines(help.Stdout + all.Stdout) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("the help of %q has a line of %d columns: %s", words, n, line)
			}
		}
	}
}
