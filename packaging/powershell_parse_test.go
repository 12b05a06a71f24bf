package packaging

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// psTokenKind is the kind of a PowerShell token.
type psTokenKind int

const (
	psWord     psTokenKind = iota // any token that has no other kind
	psVariable                    // $name, also inside a string
	// a string with its quotes; the variables and expressions in the string follow as tokens
	psString
	psOpener      // ( { [ and $( @( @{
	psCloser      // ) } ]
	psSeparator   // the end of a statement
	psOperator    // | , = &
	psRedirection // 2>&1
)

// psToken is a token of a script, with its position.
type psToken struct {
	kind                 psTokenKind
	text                 string
	lineNumber           int
	innermostOpenerIndex int  // index of the innermost opener around the token; -1 if no opener is around it
	noSpaceBefore        bool // no space precedes the token
}

// psScript is a script that is split into tokens.
type psScript struct {
	tokens         []psToken
	closerByOpener map[int]int // maps the index of each opener to that of its closer
}

// psLexer splits a script into the tokens that psRuleChecker needs.
type psLexer struct {
	psScript
	scriptText      string
	byteOffset      int
	lineNumber      int
	unclosedOpeners []int // indexes of openers that are not closed yet
	spaceBefore     bool  // a space precedes the next token
	problems        []string
}

var (
	psVariablePattern    = regexp.MustCompile(`^\$(?:\{[^}]*\}|\w+:\w+|\w+|[?^$])`)
	psCommandPattern     = regexp.MustCompile(`^(?:[A-Za-z]|[%?]$)`)
	psRedirectionPattern = regexp.MustCompile(`^(?:[0-9*]?>>?(?:&[0-9])?)`)
	// psContinuationOperators lists the operators after which a statement continues on the next line.
	psContinuationOperators = strings.Fields(
		"-and -or -xor -eq -ne -gt -lt -ge -le -match -notmatch -like -notlike -replace " +
			"-split -join -f -is -isnot -in -notin -contains -notcontains -ceq -cne + - * /")
	psAssignmentOperators = []string{"=", "+=", "-=", "*=", "/="}
	psKeywords            = strings.Fields("if elseif else foreach for while do until switch try catch finally function " +
		"filter " +
		"param return throw exit break continue in begin process end trap")
	// psOpenerByCloser maps each closer to its opener.
	psOpenerByCloser = map[byte]byte{')': '(', '}': '{', ']': '['}
)

// parsePowerShell splits a script into tokens. If it cannot parse the script, it returns the problems.
func parsePowerShell(text string) (psScript, []string) {
	l := &psLexer{scriptText: text, lineNumber: 1, spaceBefore: true, psScript: psScript{closerByOpener: map[int]int{}}}
	l.addTokens(0)
	if len(l.problems) == 0 && len(l.unclosedOpeners) > 0 {
		opener := l.tokens[l.unclosedOpeners[len(l.unclosedOpeners)-1]]
		l.addProblem(opener.lineNumber, "%s is not closed", opener.text)
	}
	return l.psScript, l.problems
}

// addProblem records a problem and moves to the end of the script, so that parsing stops.
func (l *psLexer) addProblem(line int, format string, a ...any) {
	l.problems = append(l.problems, fmt.Sprintf("%d: ", line)+fmt.Sprintf(format, a...))
	l.byteOffset = len(l.scriptText)
}

// hasPrefix reports whether the text at the present position starts with prefix.
func (l *psLexer) hasPrefix(prefix string) bool {
	return strings.HasPrefix(l.scriptText[l.byteOffset:], prefix)
}

// addToken adds the next byteCount bytes as a token.
func (l *psLexer) addToken(kind psTokenKind, byteCount int) {
	in := -1
	if len(l.unclosedOpeners) > 0 {
		in = l.unclosedOpeners[len(l.unclosedOpeners)-1]
	}
	l.tokens = append(l.tokens, psToken{kind, l.scriptText[l.byteOffset : l.byteOffset+byteCount], l.lineNumber, in,
		!l.spaceBefore})
	l.byteOffset += byteCount
	l.spaceBefore = false
}

// addTokens adds tokens until the end of the script. If minUnclosedOpeners is above 0, it also stops when fewer than
// minUnclosedOpeners openers are unclosed. That is the case, for example, at the end of an expression $( ) in a string.
func (l *psLexer) addTokens(minUnclosedOpeners int) {
	for l.byteOffset < len(l.scriptText) {
		l.addNextToken()
		if minUnclosedOpeners > 0 && len(l.unclosedOpeners) < minUnclosedOpeners {
			return
		}
	}
}

// addNextToken adds the next token, or skips a space or a comment.
func (l *psLexer) addNextToken() {
	switch c := l.scriptText[l.byteOffset]; {
	case c == '\n':
		l.handleNewline()
	case c == ' ', c == '\t', c == '\r':
		l.byteOffset, l.spaceBefore = l.byteOffset+1, true
	case l.hasPrefix("<#"):
		l.skipComment()
	case c == '#':
		line, _, _ := strings.Cut(l.scriptText[l.byteOffset:], "\n")
		l.byteOffset, l.spaceBefore = l.byteOffset+len(line), true
	case c == '`':
		l.handleBacktick()
	case l.hasPrefix("@'"), l.hasPrefix(`@"`):
		l.addHereString(c, l.scriptText[l.byteOffset+1])
	case c == '\'':
		l.addSingleQuoted()
	case c == '"':
		l.addDoubleQuoted()
	case l.hasPrefix("$("), l.hasPrefix("@("), l.hasPrefix("@{"):
		l.addOpener(2)
	case c == '(', c == '{', c == '[':
		l.addOpener(1)
	case c == ')', c == '}', c == ']':
		l.addCloser(c)
	case c == ';':
		l.addToken(psSeparator, 1)
	case c == '|', c == ',', c == '&':
		l.addToken(psOperator, 1)
	case c == '$' && psVariablePattern.MatchString(l.scriptText[l.byteOffset:]):
		l.addToken(psVariable, len(psVariablePattern.FindString(l.scriptText[l.byteOffset:])))
	case psRedirectionPattern.MatchString(l.scriptText[l.byteOffset:]):
		l.addToken(psRedirection, len(psRedirectionPattern.FindString(l.scriptText[l.byteOffset:])))
	default:
		l.addWord()
	}
}

// handleNewline handles the end of a line. It adds a separator, unless the statement continues on the next
// line.
func (l *psLexer) handleNewline() {
	last := psToken{kind: psSeparator}
	if len(l.tokens) > 0 {
		last = l.tokens[len(l.tokens)-1]
	}
	continues := last.kind == psOperator || last.kind == psSeparator || last.kind == psWord &&
		slices.Contains(psContinuationOperators, last.text)
	if continues {
		l.byteOffset++
	} else {
		l.addToken(psSeparator, 1)
	}
	l.lineNumber, l.spaceBefore = l.lineNumber+1, true
}

func (l *psLexer) skipComment() {
	end := strings.Index(l.scriptText[l.byteOffset:], "#>")
	if end < 0 {
		l.addProblem(l.lineNumber, "<# is not closed")
		return
	}
	l.lineNumber += strings.Count(l.scriptText[l.byteOffset:l.byteOffset+end], "\n")
	l.byteOffset, l.spaceBefore = l.byteOffset+end+2, true
}

func (l *psLexer) handleBacktick() {
	rest := l.scriptText[l.byteOffset+1:]
	bare := strings.TrimLeft(rest, " \t")
	switch {
	case strings.HasPrefix(rest, "\n"):
		l.byteOffset, l.lineNumber, l.spaceBefore = l.byteOffset+2, l.lineNumber+1, true
	case bare != rest && strings.HasPrefix(bare, "\n"):
		l.addProblem(l.lineNumber, "a space follows a backtick")
	default:
		l.addWord()
	}
}

// addWord adds a word, up to the next byte that cannot be part of a word. A backtick escapes the byte after it.
func (l *psLexer) addWord() {
	n := 0
	for l.byteOffset+n < len(l.scriptText) {
		c := l.scriptText[l.byteOffset+n]
		if c == '`' && l.byteOffset+n+1 < len(l.scriptText) && l.scriptText[l.byteOffset+n+1] != '\n' {
			n += 2
			continue
		}
		if strings.IndexByte(" \t\r\n;|&,(){}[]'\"`>", c) >= 0 || c == '$' && n > 0 {
			break
		}
		n++
	}
	n = min(max(n, 1), len(l.scriptText)-l.byteOffset)
	kind := psWord
	if slices.Contains(psAssignmentOperators, l.scriptText[l.byteOffset:l.byteOffset+n]) {
		kind = psOperator
	}
	l.addToken(kind, n)
}

func (l *psLexer) addOpener(byteCount int) {
	l.addToken(psOpener, byteCount)
	l.unclosedOpeners = append(l.unclosedOpeners, len(l.tokens)-1)
}

// addCloser adds a closer and checks that it fits the innermost opener.
func (l *psLexer) addCloser(c byte) {
	if len(l.unclosedOpeners) == 0 {
		l.addProblem(l.lineNumber, "%c closes nothing", c)
		return
	}
	at := l.unclosedOpeners[len(l.unclosedOpeners)-1]
	opener := l.tokens[at]
	if opener.text[len(opener.text)-1] != psOpenerByCloser[c] {
		l.addProblem(l.lineNumber, "%c closes %s of line %d", c, opener.text, opener.lineNumber)
		return
	}
	l.unclosedOpeners = l.unclosedOpeners[:len(l.unclosedOpeners)-1]
	l.closerByOpener[at] = len(l.tokens)
	l.addToken(psCloser, 1)
}

// addSingleQuoted adds a string in single quotes. In it, two single quotes in a row mean one quote, and no other
// character is special.
func (l *psLexer) addSingleQuoted() {
	for n := l.byteOffset + 1; n < len(l.scriptText); n++ {
		if l.scriptText[n] != '\'' {
			continue
		}
		if n+1 < len(l.scriptText) && l.scriptText[n+1] == '\'' {
			n++
			continue
		}
		lines := strings.Count(l.scriptText[l.byteOffset:n], "\n")
		l.addToken(psString, n+1-l.byteOffset)
		l.lineNumber += lines
		return
	}
	l.addProblem(l.lineNumber, "' is not closed")
}

// addDoubleQuoted adds a string in double quotes, which may contain variables and expressions in $( ).
func (l *psLexer) addDoubleQuoted() {
	begin, line, token := l.byteOffset, l.lineNumber, len(l.tokens)
	l.addToken(psString, 1)
	for l.byteOffset < len(l.scriptText) {
		switch {
		case l.hasPrefix("`") && l.byteOffset+1 < len(l.scriptText):
			l.lineNumber += strings.Count(l.scriptText[l.byteOffset:l.byteOffset+2], "\n")
			l.byteOffset += 2
		case l.hasPrefix(`""`):
			l.byteOffset += 2
		case l.hasPrefix(`"`):
			l.byteOffset++
			l.tokens[token].text = l.scriptText[begin:l.byteOffset]
			return
		default:
			l.addExpansionOrByte()
		}
	}
	if len(l.problems) == 0 {
		l.addProblem(line, "\" is not closed")
	}
}

// addExpansionOrByte reads the next part of a string in double quotes. If a variable or an expression begins at the
// current position, the part is the whole variable or expression. Otherwise it is one byte.
func (l *psLexer) addExpansionOrByte() {
	name := psVariablePattern.FindString(l.scriptText[l.byteOffset:])
	switch {
	case l.hasPrefix("$("):
		l.addOpener(2)
		l.addTokens(len(l.unclosedOpeners))
	case name != "":
		l.addToken(psVariable, len(name))
		if l.hasPrefix(":") && name[1] != '{' {
			l.addProblem(l.lineNumber, "a colon follows %s in a string; write ${%s}:", name, name[1:])
		}
	default:
		l.lineNumber += strings.Count(l.scriptText[l.byteOffset:l.byteOffset+1], "\n")
		l.byteOffset++
	}
}

// addHereString adds a here-string. Its text begins after the line with the opening quote, and ends before the
// line with the closing quote.
func (l *psLexer) addHereString(atSign, quote byte) {
	begin := string([]byte{atSign, quote})
	first, rest, _ := strings.Cut(l.scriptText[l.byteOffset+2:], "\n")
	if strings.TrimSpace(first) != "" {
		l.addProblem(l.lineNumber, "%s is followed by more than the end of the line", begin)
		return
	}
	end := strings.Index("\n"+rest, "\n"+string([]byte{quote, atSign}))
	if end < 0 {
		l.addProblem(l.lineNumber, "%s is not closed at the beginning of a line", begin)
		return
	}
	whole := 2 + len(first) + 1 + end + 2
	if quote == '\'' {
		lines := strings.Count(l.scriptText[l.byteOffset:l.byteOffset+whole], "\n")
		l.addToken(psString, whole)
		l.lineNumber += lines
		return
	}
	stop := l.byteOffset + whole
	l.addToken(psString, 2)
	for l.byteOffset < stop-2 {
		l.addExpansionOrByte()
	}
	l.byteOffset = max(l.byteOffset, min(stop, len(l.scriptText)))
}

// isCommandName reports whether a token is the name of a command.
func (f psScript) isCommandName(tokenIndex int) bool {
	t := f.tokens[tokenIndex]
	if t.kind != psWord || f.isKeyword(tokenIndex) || !psCommandPattern.MatchString(t.text) {
		return false
	}
	if t.innermostOpenerIndex >= 0 && (f.tokens[t.innermostOpenerIndex].text == "[" ||
		f.opensArgumentList(t.innermostOpenerIndex)) {
		return false
	}
	if tokenIndex == 0 {
		return true
	}
	switch before := f.tokens[tokenIndex-1]; before.kind {
	case psSeparator, psOpener:
		// The first word inside @{ } is a key of a hash table, not a command.
		return t.innermostOpenerIndex < 0 || f.tokens[t.innermostOpenerIndex].text != "@{"
	case psOperator:
		return before.text != "," && before.text != "&"
	case psWord:
		return slices.Contains([]string{"return", "throw", "in"}, before.text)
	}
	return false
}

// opensArgumentList reports whether an opening parenthesis begins a list of arguments or parameters: of a method, an
// attribute or a function.
func (f psScript) opensArgumentList(tokenIndex int) bool {
	t := f.tokens[tokenIndex]
	return t.text == "(" && t.noSpaceBefore && tokenIndex > 0 && f.tokens[tokenIndex-1].kind != psOpener &&
		f.tokens[tokenIndex-1].kind != psOperator && !f.isKeyword(tokenIndex-1)
}

func (f psScript) isKeyword(tokenIndex int) bool {
	return f.tokens[tokenIndex].kind == psWord && slices.Contains(psKeywords,
		strings.ToLower(f.tokens[tokenIndex].text)) || tokenIndex > 0 &&
		f.tokens[tokenIndex-1].kind == psWord && f.tokens[tokenIndex-1].text == "function"
}

// enclosingBlock returns the indexes of the { and the } that most closely enclose a token. For a token outside all
// blocks, it returns -1 and the number of tokens.
func (f psScript) enclosingBlock(tokenIndex int) (blockBegin, blockEnd int) {
	for at := f.tokens[tokenIndex].innermostOpenerIndex; at >= 0; at = f.tokens[at].innermostOpenerIndex {
		if f.tokens[at].text == "{" {
			return at, f.closerByOpener[at]
		}
	}
	return -1, len(f.tokens)
}
