package cmdline

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Encode uses the quoting rules of the program that is started: cmd.exe, batch files, PowerShell, and others.
func TestEncodeUsesProgramQuotingRules(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{`C:\Program Files\x.exe`, "a b", "", `c:\d\`}, `"C:\Program Files\x.exe" "a b" "" c:\d\`},
		{[]string{"x", `say "hi"`, `c:\a b\`, `\\"`}, `x "say \"hi\"" "c:\a b\\" "\\\\\""`},
		{[]string{"x", "/C", "a b"}, `x /C "a b"`},

		{[]string{"cmd.exe", "/C", `echo "a & b" & dir`}, `cmd.exe /D /S /V:OFF /C "echo "a & b" & dir"`},
		{[]string{"cmd", "/d", "/V:ON", "/c", `"C:\a b\x.exe" "y"`}, `cmd /S /d /V:ON /c ""C:\a b\x.exe" "y""`},
		{[]string{`C:\Windows\System32\CMD.EXE`, "/K", "echo", "a", "b"},
			`C:\Windows\System32\CMD.EXE /D /S /V:OFF /K "echo a b"`},
		{[]string{"cmd", "/D", "/S", "/C", "echo 100%^\r\n"}, `cmd /V:OFF /D /S /C "echo 100%^"`},
		{[]string{"cmd", "/Q"}, "cmd /Q"},

		{[]string{"powershell", "-Command", `Write-Output "a  b"`},
			`powershell -NoProfile -NonInteractive -Command "Write-Output \"a  b\""`},
		{[]string{"pwsh.exe", "-nop", "-c", "exit 3"}, `pwsh.exe -nop -NonInteractive -c "exit 3"`},
		{[]string{"powershell", "-noni", "-nologo", "-C", "1\n2"}, "powershell -noni -nologo -NoProfile -C \"1\n2\""},
		{[]string{"powershell", "-File", "x.ps1", "-c"}, "powershell -File x.ps1 -c"},
		{[]string{"powershell", "-enc", "AAAA"}, "powershell -enc AAAA"},

		{[]string{`C:\a b\x.bat`, "plain", "a b", "", "&|<>^", "a,b;c=d", `c:\`, `a b\`, "!x!"},
			`cmd.exe /D /E:ON /V:OFF /S /C ""C:\a b\x.bat" plain "a b" "" "&|<>^" "a,b;c=d" c:\ "a b\\" "!x!""`},
		{[]string{"X.CMD. .", "a"}, `cmd.exe /D /E:ON /V:OFF /S /C ""X.CMD. ." a"`},
	} {
		if got, err := Encode(c.argv); got != c.want || err != nil {
			t.Errorf("%q:\ngot  %s (%v)\nwant %s", c.argv, got, err, c.want)
		}
	}
}

// Encode rejects arguments that it cannot pass unchanged. The error says why.
func TestEncodeRejectsUnpassableArguments(t *testing.T) {
	for _, c := range []struct {
		argv []string
		want string
	}{
		{[]string{"x", "a\x00b"}, "NUL"},
		{[]string{`x"y`}, "quotes"},
		{[]string{"cmd", "/C", "a\nb"}, "one line"},
		{[]string{"x.bat", `"`}, "cmd.exe"},
		{[]string{"x.bat", "%PATH%"}, "cmd.exe"},
		{[]string{"x.bat", "a\nb"}, "cmd.exe"},
		{[]string{"100%.bat"}, "cmd.exe"},
		{[]string{"x", strings.Repeat("a", maxCommandLineLength-1)}, "32766"},
		{[]string{"x", strings.Repeat("😀", maxCommandLineLength/2)}, "32766"},
		{[]string{"cmd", "/C", strings.Repeat("a", maxCmdExeLineLength-len(`cmd /D /S /V:OFF /C ""`)+1)}, "8191"},
		{[]string{"x.bat", strings.Repeat("a", maxCmdExeLineLength)}, "8191"},
	} {
		if line, err := Encode(c.argv); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %.60q, %v; want an error with %q", c.argv, line, err, c.want)
		}
	}
	for _, argv := range [][]string{
		{"x", strings.Repeat("a", maxCommandLineLength-2)},
		{"cmd", "/C", strings.Repeat("a", maxCmdExeLineLength-len(`cmd /D /S /V:OFF /C ""`))},
	} {
		if line, err := Encode(argv); err != nil {
			t.Errorf("the longest line: %d characters, %v", len(line), err)
		}
	}
}

// For any arguments, the function CommandLineToArgvW would split the line that Encode returns into the same
// arguments.
func TestEncodeKeepsArguments(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		argument := rapid.StringOf(rapid.SampledFrom([]rune("ab \t\n\"\"\\\\\\%&^é😀")))
		argv := append([]string{`C:\a b\x.exe`}, rapid.SliceOf(argument).Draw(t, "arguments")...)
		line, err := Encode(argv)
		if err != nil {
			t.Fatal(err)
		}
		if got := splitCommandLine(line); !slices.Equal(got, argv) {
			t.Fatalf("%s\ngot  %q\nwant %q", line, got, argv)
		}
	})
}

// splitCommandLine splits a line by the rules of CommandLineToArgvW.
func splitCommandLine(line string) (argv []string) {
	name, rest, quoted := "", line, false
	if strings.HasPrefix(line, `"`) {
		name, rest, _ = strings.Cut(line[1:], `"`)
	} else {
		name, rest, _ = strings.Cut(line, " ")
	}
	argv = append(argv, name)
	for {
		if rest = strings.TrimLeft(rest, " \t"); rest == "" {
			return argv
		}
		var a strings.Builder
		i := 0
		for quoted = false; i < len(rest) && (quoted || rest[i] != ' ' && rest[i] != '\t'); {
			n := len(rest[i:]) - len(strings.TrimLeft(rest[i:], `\`))
			i += n
			if i == len(rest) || rest[i] != '"' {
				a.WriteString(strings.Repeat(`\`, n))
				if n == 0 {
					a.WriteByte(rest[i])
					i++
				}
				continue
			}
			a.WriteString(strings.Repeat(`\`, n/2))
			if n%2 == 1 {
				a.WriteByte('"')
			} else {
				quoted = !quoted
			}
			i++
		}
		argv, rest = append(argv, a.String()), rest[i:]
	}
}
