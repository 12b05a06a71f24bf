package packaging

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// psAliases lists the default aliases of Windows PowerShell 5.1 and PowerShell 7. The rule
// AvoidUsingCmdletAliases of PSScriptAnalyzer uses the same list.
var psAliases = strings.Fields(
	`% ? ac asnp cat cd cfs chdir clc clear clhy cli clp cls clv cnsn compare copy cp cpi cpp curl cvpa dbp del
	diff dir dnsn ebp echo epal epcsv epsn erase etsn exsn fc fhx fimo fl ft fw gal gbp gc gcai gcb gci gcim gcm gcms gcs gdr gerr ghy gi gin
	gjb gl gm gmo gp gps gpv group gsn gsnp gsv gtz gu gv gwmi h history icim icm iex ihy ii inmo ipal ipcsv ipmo ipsn irm ise iwmi iwr kill
	lp ls man md measure mi mount move mp mv nal ncim ncms ndr ni nmo npssc nsn nv ogv oh pfn popd ps psedit pumo pushd pwd r rbp rcie rcim
	rcjb rcms rcsn rd rdr ren ri rjb rm rmdir rmo rni rnp rp rsn rsnp rtcim rujb rv rvpa rwmi sajb sal saps sasv sbp sc scb scim select set
	shcm si sl sleep sls sort sp spjb spps spsv start stz sujb sv swmi tee trcm type upmo uvmo wget where wjb write`)

// psApprovedVerbs lists the verbs with which the name of a function should begin, as Get-Verb prints them.
// psCmdletsWithUnapprovedVerbs, below, lists cmdlets whose names begin with other verbs.
var psApprovedVerbs = strings.Fields(
	`Add Clear Close Copy Enter Exit Find Format Get Hide Join Lock Move New Open Optimize Pop Push Redo Remove
	Rename Reset Resize Search Select Set Show Skip Split Step Switch Undo Unlock Watch Connect Disconnect Read Receive Send Write Backup
	Checkpoint Compare Compress Convert ConvertFrom ConvertTo Dismount Edit Expand Export Group Import Initialize Limit Merge Mount Out
	Publish Restore Save Sync Unpublish Update Debug Measure Ping Repair Resolve Test Trace Approve Assert Build Complete Confirm Deny Deploy
	Disable Enable Install Invoke Register Request Restart Resume Start Stop Submit Suspend Uninstall Unregister Wait Block Grant Protect
	Revoke Unblock Unprotect Use`)

var (
	psCmdletsWithUnapprovedVerbs = []string{"Where-Object", "ForEach-Object", "Sort-Object", "Tee-Object"}
	psCmdletPattern              = regexp.MustCompile(`^([A-Z][A-Za-z]+)-[A-Z]\w+$`)
	psProgramPattern             = regexp.MustCompile(`(?i)\.(?:exe|com|cmd|bat)$`)
)

// psFunctionBody is the body of a function, as a range of token indexes.
type psFunctionBody struct{ beginTokenIndex, endTokenIndex int }

// psRuleChecker checks a script against the rules of TestPowerShellScriptsFollowRules.
type psRuleChecker struct {
	psScript
	functions                map[string]psFunctionBody
	uncheckedExitCodeSetters map[string]bool // functions that set $script:Code and do not check it, so their callers must
	exitCodeSetters          map[string]bool // functions that set $script:Code themselves or call a function that sets it
	problems                 []string
}

// scriptProblems returns the problems of a script. Each problem begins with its line number.
func scriptProblems(text string) []string {
	for i, line := range strings.Split(text, "\n") {
		if strings.ContainsFunc(line, func(r rune) bool { return r > 126 }) {
			return []string{fmt.Sprintf("%d: it is not ASCII, and Windows PowerShell reads such a file by the "+
				"machine's code page", i+1)}
		}
	}
	f, problems := parsePowerShell(text)
	if len(problems) > 0 {
		return problems
	}
	r := &psRuleChecker{psScript: f, functions: map[string]psFunctionBody{},
		uncheckedExitCodeSetters: map[string]bool{}, exitCodeSetters: map[string]bool{}}
	r.checkPreamble()
	r.findFunctions()
	r.findExitCodeSetters()
	for i := range r.tokens {
		r.checkCommand(i)
		r.checkExitCode(i)
		r.checkStderrRedirection(i)
	}
	return r.problems
}

// addProblem records a problem at the token with index tokenIndex.
func (r *psRuleChecker) addProblem(tokenIndex int, format string, a ...any) {
	r.problems = append(r.problems, fmt.Sprintf("%d: ", r.tokens[tokenIndex].lineNumber)+fmt.Sprintf(format, a...))
}

// hasTexts reports whether the tokens from tokenIndex on are these texts. It ignores case.
func (r *psRuleChecker) hasTexts(tokenIndex int, texts ...string) bool {
	for n, text := range texts {
		if tokenIndex < 0 || tokenIndex+n >= len(r.tokens) || !strings.EqualFold(r.tokens[tokenIndex+n].text, text) {
			return false
		}
	}
	return true
}

// checkPreamble checks that the script begins with the commands that set strict mode and make errors stop the
// script. Only the parameters of the script may precede them.
func (r *psRuleChecker) checkPreamble() {
	at := 0
	skip := func() {
		for at < len(r.tokens) && r.tokens[at].kind == psSeparator {
			at++
		}
	}
	if skip(); r.hasTexts(at, "param", "(") {
		at = r.closerByOpener[at+1] + 1
	}
	skip()
	strict := r.hasTexts(at, "Set-StrictMode", "-Version")
	at += 4
	if !strict || !r.hasTexts(at, "$ErrorActionPreference", "=", "'Stop'") {
		r.problems = append(r.problems, "1: the script does not begin with Set-StrictMode and "+
			"$ErrorActionPreference = 'Stop'")
	}
}

// findFunctions finds the functions of the script, and checks that their names begin with approved verbs.
func (r *psRuleChecker) findFunctions() {
	for i := range r.tokens {
		if !r.hasTexts(i, "function") || r.tokens[i].kind != psWord || i+2 >= len(r.tokens) {
			continue
		}
		name, body := r.tokens[i+1].text, i+2
		if r.hasTexts(body, "(") {
			body = r.closerByOpener[body] + 1
		}
		r.functions[name] = psFunctionBody{body, r.closerByOpener[body]}
		if verb, _, ok := strings.Cut(name, "-"); ok && !slices.Contains(psApprovedVerbs, verb) {
			r.addProblem(i, "%s is not an approved verb", verb)
		}
	}
}

// enclosingFunction returns the name of the function that contains a token, or "" for a token outside functions.
func (r *psRuleChecker) enclosingFunction(tokenIndex int) string {
	for name, f := range r.functions {
		if f.beginTokenIndex < tokenIndex && tokenIndex < f.endTokenIndex {
			return name
		}
	}
	return ""
}

// findExitCodeSetters fills exitCodeSetters and uncheckedExitCodeSetters. A function is an unchecked setter if it sets
// $script:Code, or if it calls an unchecked setter and does not check $script:Code after the call.
func (r *psRuleChecker) findExitCodeSetters() {
	for i := range r.tokens {
		if name := r.enclosingFunction(i); name != "" && r.hasTexts(i, "$script:Code", "=") {
			r.uncheckedExitCodeSetters[name], r.exitCodeSetters[name] = true, true
		}
	}
	for before := -1; before != len(r.uncheckedExitCodeSetters)+len(r.exitCodeSetters); {
		before = len(r.uncheckedExitCodeSetters) + len(r.exitCodeSetters)
		for i, t := range r.tokens {
			name := r.enclosingFunction(i)
			if name == "" || !r.isCommandName(i) || !r.exitCodeSetters[t.text] {
				continue
			}
			r.exitCodeSetters[name] = true
			if r.uncheckedExitCodeSetters[t.text] && !r.isExitCodeChecked(i) {
				r.uncheckedExitCodeSetters[name] = true
			}
		}
	}
}

// checkCommand checks that the name of a command is the full name of a cmdlet, a function of the script, or the
// file of a program.
func (r *psRuleChecker) checkCommand(tokenIndex int) {
	if !r.isCommandName(tokenIndex) {
		return
	}
	name := r.tokens[tokenIndex].text
	_, own := r.functions[name]
	parts := psCmdletPattern.FindStringSubmatch(name)
	switch {
	case strings.EqualFold(name, "Write-Host"):
		r.addProblem(tokenIndex, "%s cannot be captured; write Write-Output", name)
	case own, slices.Contains(psCmdletsWithUnapprovedVerbs, name), psProgramPattern.MatchString(name), parts != nil &&
		slices.Contains(psApprovedVerbs, parts[1]):
	case slices.Contains(psAliases, strings.ToLower(name)):
		r.addProblem(tokenIndex, "%s is an alias; write the cmdlet's name", name)
	default:
		r.addProblem(tokenIndex, "%s is not a function of the script, the whole name of a cmdlet or a program file", name)
	}
}

// startedProgram returns the program that a token starts, or "" if it starts none.
func (r *psRuleChecker) startedProgram(tokenIndex int) string {
	if r.isCommandName(tokenIndex) && psProgramPattern.MatchString(r.tokens[tokenIndex].text) {
		return r.tokens[tokenIndex].text
	}
	if r.tokens[tokenIndex].kind != psOperator || !r.hasTexts(tokenIndex, "&") || tokenIndex+1 >= len(r.tokens) {
		return ""
	}
	called := r.tokens[tokenIndex+1].text
	for n := range r.tokens {
		if r.hasTexts(n, "[", "scriptblock", "]", called) {
			return ""
		}
	}
	return "& " + called
}

// isExitCodeChecked reports whether the script checks the exit code of the call at tokenIndex. The check must be in the
// same block as the call, and must come before another call that overwrites the exit code.
func (r *psRuleChecker) isExitCodeChecked(tokenIndex int) bool {
	program := r.startedProgram(tokenIndex) != ""
	_, end := r.enclosingBlock(tokenIndex)
	for at := tokenIndex + 1; at < end; at++ {
		switch {
		case program && r.hasTexts(at, "$LASTEXITCODE"):
			return true
		case !program && (r.hasTexts(at, "$script:Code") || r.hasTexts(at, "${script:Code}") || r.hasTexts(at, "Ended")):
			return true
		case program && r.startedProgram(at) != "", r.isCommandName(at) && r.exitCodeSetters[r.tokens[at].text]:
			return false
		}
	}
	return false
}

// checkExitCode checks that the script checks the exit code of a program that it starts at tokenIndex. It does the same
// for calls of unchecked setters (see findExitCodeSetters) outside functions.
func (r *psRuleChecker) checkExitCode(tokenIndex int) {
	called := r.startedProgram(tokenIndex)
	if called == "" && r.isCommandName(tokenIndex) && r.uncheckedExitCodeSetters[r.tokens[tokenIndex].text] &&
		r.enclosingFunction(tokenIndex) == "" {
		called = r.tokens[tokenIndex].text
	}
	if called != "" && !r.isExitCodeChecked(tokenIndex) {
		r.addProblem(tokenIndex, "no code checks the exit code of %s", called)
	}
}

// checkStderrRedirection checks that the script uses 2>&1 only in blocks in which errors do not stop the script. In
// other blocks, Windows PowerShell would stop at the first line that a program prints to standard error.
func (r *psRuleChecker) checkStderrRedirection(tokenIndex int) {
	if !r.hasTexts(tokenIndex, "2>&1") || r.tokens[tokenIndex].kind != psRedirection {
		return
	}
	block, _ := r.enclosingBlock(tokenIndex)
	for at := block + 1; block >= 0 && at < tokenIndex; at++ {
		if in, _ := r.enclosingBlock(at); in == block && r.hasTexts(at, "$ErrorActionPreference", "=", "'Continue'") {
			return
		}
	}
	r.addProblem(tokenIndex, "2>&1 where errors stop the script: Windows PowerShell throws at the first line of stderr")
}
