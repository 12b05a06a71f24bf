package packaging

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// All PowerShell scripts can be parsed, follow the rules of PSScriptAnalyzer, and check the exit codes of programs.
// This is the only test of the scripts that does not need a real Windows.
func TestPowerShellScriptsFollowRules(t *testing.T) {
	for _, name := range []string{"test/windows.ps1", "../docs/Queuectl.psm1"} {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range scriptProblems(string(raw)) {
			t.Errorf("%s:%s", name, p)
		}
	}
}

// Each rule reports code that violates it, and does not report similar code that is correct.
func TestPowerShellRulesReportViolations(t *testing.T) {
	const top = "param([string] $Name)\nSet-StrictMode -Version 2\n$ErrorActionPreference = 'Stop'\n"
	for _, c := range []struct{ name, text, want string }{
		{"nothing", top, ""},
		{"whatever it may have", top + "# it's {\n<# ( #>\n$a = @{ ls = 1; 'b' = \"$($Name -join \"'\") `\" \"\"\" " +
			"}\n@'\nls '\" {\n'@ | Out-Null\n\"a: ${Name}: $a[\"\n'it''s' -replace '[(]', \"`$(\"\n${a b} = 'x', `\n    " +
			"'y'\nNew-Item -Path a#b\n", ""},
		{"strict mode is missing", "$ErrorActionPreference = 'Stop'\n",
			"1: the script does not begin with Set-StrictMode and $ErrorActionPreference = 'Stop'"},
		{"errors stop nothing", "Set-StrictMode -Version 2\n$ErrorActionPreference = 'Continue'\n",
			"1: the script does not begin with Set-StrictMode and $ErrorActionPreference = 'Stop'"},
		{"strict mode comes late", "Get-Item x\n" + top,
			"1: the script does not begin with Set-StrictMode and $ErrorActionPreference = 'Stop'"},
		{"a brace is open", top + "if ($Name) {\n", "4: { is not closed"},
		{"a brace is left over", top + "}\n", "4: } closes nothing"},
		{"brackets cross", top + "$a = @(1, [int]{2)}\n", "4: ) closes { of line 4"},
		{"a quote is open", top + "'a\nb\n", "4: ' is not closed"},
		{"a double quote is open", top + "\"a`\"\n", "4: \" is not closed"},
		{"an expression in a string is open", top + "\"$(Get-Item x\"\n", "4: \" is not closed"},
		{"a here-string is open", top + "@'\na\n '@\n", "4: @' is not closed at the beginning of a line"},
		{"a here-string begins late", top + "@'a\n'@\n", "4: @' is followed by more than the end of the line"},
		{"a comment is open", top + "<# a\n", "4: <# is not closed"},
		{"a backtick joins no lines", top + "Get-Item `  \n    x\n", "4: a space follows a backtick"},
		{"a colon is read as part of a name", top + "\"a $Name: b\"\n",
			"4: a colon follows $Name in a string; write ${Name}:"},
		{"other letters than Windows PowerShell reads", top + "'\u00e4'\n",
			"4: it is not ASCII, and Windows PowerShell reads such a file by the machine's code page"},
		{"an alias", top + "$a = @(ls $Name)\n", "4: ls is an alias; write the cmdlet's name"},
		{"an alias in a pipeline", top + "Get-Item x | ? { $_ } | % { $_ }\n",
			"4: ? is an alias; write the cmdlet's name\n4: % is an alias; write the cmdlet's name"},
		{"an alias in a string", top + "\"a $(gci $Name)\"\n", "4: gci is an alias; write the cmdlet's name"},
		{"a cmdlet without its verb", top + "Service queuectl\n",
			"4: Service is not a function of the script, the whole name of a cmdlet or a program file"},
		{"Write-Host", top + "Write-Host $Name\n", "4: Write-Host cannot be captured; write Write-Output"},
		{"a verb that is not approved", top + "function Fetch-Thing { 1 }\n", "4: Fetch is not an approved verb"},
		{"a verb that is", top + "function Get-Thing { 1 }\nGet-Thing\n", ""},
		{"the exit code of a program is not checked", top + "sc.exe query x\n", "4: no code checks the exit code of sc.exe"},
		{"nor by its call", top + "& $Name a\n", "4: no code checks the exit code of & $Name"},
		{"nor in its block", top + "if ($Name) { & 'a.exe' }\nif ($LASTEXITCODE) { throw 'a' }\n",
			"4: no code checks the exit code of & 'a.exe'"},
		{"nor before the next", top + "a.exe\nb.exe\nif ($LASTEXITCODE) { throw 'b' }\n",
			"4: no code checks the exit code of a.exe"},
		{"a program is checked", top + "$a = (& $Name a | Out-String)\nif ($LASTEXITCODE -ne 0) { throw " +
			"\"exit code $a\" }\n", ""},
		{"so in a string", top + "& $Name a\n\"ended with $LASTEXITCODE\"\n", ""},
		{"a block is not a program", top + "function Do-It([scriptblock] $Check) { & $Check }\n",
			"4: Do is not an approved verb"},
		{"a helper's exit code is lost", top + "function Q { & $Name\n$script:Code = $LASTEXITCODE }\nfunction Ask { Q\nif " +
			"($script:Code) { throw } }\nQ\nAsk\n", "8: no code checks the exit code of Q"},
		{"or overwritten", top + "function Q { & $Name\n$script:Code = $LASTEXITCODE }\nfunction Ask { Q\nif " +
			"($script:Code) { throw } }\nQ\nAsk\n$script:Code\n", "8: no code checks the exit code of Q"},
		{"or handed on, and lost", top + "function Q { & $Name\n$script:Code = $LASTEXITCODE }\nfunction R { Q a }\nR\n",
			"7: no code checks the exit code of R"},
		{"stderr stops the script", top + "$a = & $Name 2>&1\nif ($LASTEXITCODE) { throw }\n",
			"4: 2>&1 where errors stop the script: Windows PowerShell throws at the first line of stderr"},
		{"stderr does not", top + "function Q {\n$ErrorActionPreference = 'Continue'\n(& $Name 2>&1)\n$script:Code " +
			"= $LASTEXITCODE }\n", ""},
	} {
		if got := strings.Join(scriptProblems(c.text), "\n"); got != c.want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

// The parser recognises the same command names as PowerShell in all constructs that the rules need.
func TestPowerShellParserRecognisesCommands(t *testing.T) {
	const text = "$x = Get-A b | Get-C; if (Get-D) { Get-E } else { return Get-F @{ g = Get-H; i = 1 } }\n" +
		"foreach ($j in Get-K) { try { [l]::m($n) } catch [System.Exception] { throw \"$(Get-P $q)\" } }\n" +
		"Get-R `\n    s `\n    t, Get-U\n$x.y -eq (Get-V)\nfunction W([string] $X = 'y') { z.exe }\n"
	var got []string
	f, problems := parsePowerShell(text)
	for i := range f.tokens {
		if f.isCommandName(i) {
			got = append(got, f.tokens[i].text)
		}
	}
	want := []string{"Get-A", "Get-C", "Get-D", "Get-E", "Get-F", "Get-H", "Get-K", "Get-P", "Get-R", "Get-V", "z.exe"}
	if len(problems) != 0 || !slices.Equal(got, want) {
		t.Errorf("got commands %q and problems %q; want commands %q", got, problems, want)
	}
}
