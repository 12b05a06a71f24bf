// Package termtext converts a program's terminal output to text that can be read without a terminal. It also
// escapes, cuts and lays out text for a terminal. Start with Renderer.
package termtext

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// These constants bound the size of a Renderer and the effect of a sequence.
const (
	// maxLineColumns is the maximum number of columns of the current line. A longer line counts as finished, and later
	// output cannot change it.
	maxLineColumns        = 4096
	maxColumnsPerSequence = 1000 // maximum number of columns that one sequence can move, insert or repeat
	// maxSequenceBytes is the longest control sequence, in bytes. If a sequence is longer, its first
	// maxSequenceBytes bytes are dropped, and the rest is treated as text.
	maxSequenceBytes = 64
	maxStyleBytes    = 128 // maximum number of bytes of the colour sequences that apply to a character
	maxCellBytes     = 32  // maximum number of bytes of a character with its combining marks
)

// Renderer returns each line of a terminal's output once, as it looks when the cursor leaves the line. It keeps the
// current line as cells, one for each column. So it can handle carriage returns, backspaces, and sequences that move,
// erase, insert and delete within a line. For example, "10%\r20%\b!" results in "20!".
//
// A sequence that moves the cursor to another line ends the current line. Renderer drops all other control
// sequences. It also drops output on the alternate screen, which full-screen programs use.
//
// The zero value is ready for use, at the beginning of an output.
type Renderer struct {
	KeepColours     bool // keep colour sequences in the result
	StartsMidOutput bool // the text begins in the middle of an output, possibly on the alternate screen

	partialInput          string          // incomplete character or sequence
	inControlString       bool            // the output is inside a string for the terminal, such as a title
	finishedLines         strings.Builder // finished lines that Write has not returned yet
	cells                 []cell
	column                int     // column of the cursor
	savedColumn           int     // column that the program has saved
	activeStyle           string  // colour sequences that apply to the next character
	charsetHasLineDrawing [2]bool // whether character set 0 or 1 contains line drawings
	activeCharset         int     // the active character set
	onAlternateScreen     bool    // the alternate screen is active
	usedAlternateScreen   bool    // the alternate screen has been entered or left before
	lastCharacter         string  // the last printed character, which a sequence can repeat
}

// cell is one column of the line.
type cell struct {
	text  string // a character with its combining marks; "" for the second column of a wide one
	style string // the active colour sequences
}

// RenderText returns the last part of an output as a Renderer shows it.
func RenderText(text string, keepColours bool) string {
	r := Renderer{KeepColours: keepColours, StartsMidOutput: true}
	return r.Write(text) + r.Finish()
}

// Write processes the next piece of output, and returns the lines that it finishes.
func (r *Renderer) Write(text string) string {
	text, r.partialInput = r.partialInput+text, ""
	for len(text) > 0 {
		if r.inControlString {
			text = r.skipControlString(text)
			continue
		}
		n := r.renderNextToken(text)
		if n == 0 {
			r.partialInput = strings.Clone(text)
			break
		}
		text = text[n:]
	}
	out := r.finishedLines.String()
	r.finishedLines.Reset()
	return out
}

// CurrentLine returns the unfinished current line.
func (r *Renderer) CurrentLine() string {
	var b strings.Builder
	style := ""
	for _, c := range r.cells {
		text := c.text
		if c.style != style && text != "" {
			text = styleEndSequence(style) + c.style + text
			style = c.style
		}
		b.WriteString(text)
	}
	return b.String() + styleEndSequence(style)
}

// styleEndSequence returns the colour sequence that ends a style.
func styleEndSequence(style string) string {
	if style == "" {
		return ""
	}
	return "\x1b[0m"
}

// Finish returns the unfinished line at the end of the output. The next call of Write begins a new output.
func (r *Renderer) Finish() string {
	// At the end of the output, show an incomplete character as U+FFFD.
	if !r.inControlString && !utf8.FullRuneInString(r.partialInput) && r.partialInput != "" {
		r.putCharacter(string(utf8.RuneError), 1)
	}
	out := r.finishedLines.String() + r.CurrentLine()
	*r = Renderer{KeepColours: r.KeepColours, StartsMidOutput: r.StartsMidOutput}
	return out
}

// renderNextToken processes the character or sequence at the beginning of text and returns its length. It returns
// 0 if the text ends before the character or sequence is complete.
func (r *Renderer) renderNextToken(text string) int {
	switch c := text[0]; {
	case c == 0x1b:
		return r.processEscapeSequence(text)
	case c < ' ' || c == 0x7f:
		r.processControlCharacter(c)
		return 1
	case !utf8.FullRuneInString(text):
		return 0
	}
	char, n := utf8.DecodeRuneInString(text)
	switch {
	// Replace each invalid byte by U+FFFD. Two invalid bytes that were kept could together form a valid
	// character.
	case char == utf8.RuneError && n == 1:
		r.putCharacter(string(utf8.RuneError), 1)
	case char == 0x9b:
		return r.processControlSequence(text, n)
	case char == 0x85:
		r.processControlCharacter('\n')
	case char == 0x90 || char == 0x98 || char >= 0x9d && char <= 0x9f:
		r.inControlString = true
	case char >= 0x80 && char <= 0x9f:
	case CharacterWidth(char) == 0:
		if i := r.characterStartColumn(min(r.column, len(r.cells)) - 1); !r.onAlternateScreen && i >= 0 &&
			len(r.cells[i].text) < maxCellBytes {
			r.cells[i].text += string(char)
		}
	default:
		if r.charsetHasLineDrawing[r.activeCharset] && char >= '`' && char <= '~' {
			char = []rune("◆▒␉␌␍␊°±␤␋┘┐┌└┼⎺⎻─⎼⎽├┤┴┬│≤≥π≠£·")[char-'`']
		}
		r.putCharacter(string(char), CharacterWidth(char))
	}
	return n
}

// processControlCharacter applies a control character, such as CR or TAB, to the line and the cursor.
func (r *Renderer) processControlCharacter(c byte) {
	switch {
	case c == 0x0e || c == 0x0f:
		r.activeCharset = int(0x0f - c)
	case r.onAlternateScreen:
	case c == '\n', c == '\v', c == '\f':
		r.finishLine("\n", 0)
	case c == '\r':
		r.column = 0
	case c == '\b':
		r.column = max(0, r.column-1)
	case c == '\t':
		next := r.column/8*8 + 8
		if r.column >= len(r.cells) {
			r.putCharacter("\t", next-r.column)
		}
		r.column = min(next, maxLineColumns-1)
	}
}

// processEscapeSequence processes a sequence that begins with ESC.
func (r *Renderer) processEscapeSequence(text string) int {
	if len(text) < 2 {
		return 0
	}
	switch c := text[1]; c {
	case '[':
		return r.processControlSequence(text, 2)
	case ']', 'P', 'X', '^', '_':
		r.inControlString = true
	case '7':
		r.savedColumn = r.column
	case '8':
		r.column = r.savedColumn
	case 'D', 'E', 'M':
		r.moveToOtherLine(0)
	case 'c':
		r.charsetHasLineDrawing, r.activeCharset, r.onAlternateScreen, r.activeStyle = [2]bool{}, 0, false, ""
		r.moveToOtherLine(0)
	default:
		end, complete := sequenceEnd(text, 1, '0')
		if complete && (c == '(' || c == ')') {
			r.charsetHasLineDrawing[c-'('] = text[end-1] == '0'
		}
		return end
	}
	return 2
}

// processControlSequence processes a control sequence whose parameters begin at text[paramsStart]. It returns the index
// after the sequence.
func (r *Renderer) processControlSequence(text string, paramsStart int) int {
	end, complete := sequenceEnd(text, paramsStart, '@')
	if complete {
		r.applyControlSequence(text[paramsStart:end-1], text[end-1])
	}
	return end
}

// sequenceEnd returns the index after a sequence whose parameters begin at text[paramsStart]. A byte from
// minFinalByte to '~' completes the sequence. If the sequence is invalid or too long, sequenceEnd returns the
// index after the bytes to drop, and complete is false. It returns 0 if the text ends before the sequence.
func sequenceEnd(text string, paramsStart int, minFinalByte byte) (end int, complete bool) {
	for i := paramsStart; i < len(text); i++ {
		switch c := text[i]; {
		case c < ' ' || c > '~':
			return i, false
		case c >= minFinalByte:
			return i + 1, true
		case i > maxSequenceBytes:
			return i, false
		}
	}
	return 0, false
}

// skipControlString skips a string for the terminal and returns the rest of the text. The string ends at its
// terminator, or at a byte that it cannot contain.
func (r *Renderer) skipControlString(text string) string {
	end := strings.IndexAny(text, "\a\x18\x1a\x1b\n\u009c")
	if end < 0 {
		if strings.HasSuffix(text, "\xc2") { // this may be the first half of U+009C, which ends the string
			r.partialInput = "\xc2"
		}
		return ""
	}
	r.inControlString = false
	switch text[end] {
	case 0x1b, '\n':
		return text[end:]
	case 0xc2:
		end++
	}
	return text[end+1:]
}

// applyControlSequence applies a control sequence.
func (r *Renderer) applyControlSequence(params string, finalByte byte) {
	if list, private := strings.CutPrefix(params, "?"); private && (finalByte == 'h' || finalByte == 'l') {
		for mode := range strings.SplitSeq(list, ";") {
			if mode == "47" || mode == "1047" || mode == "1049" {
				r.setAlternateScreen(finalByte == 'h')
			}
		}
		return
	}
	if r.onAlternateScreen || strings.Trim(params, "0123456789;:") != "" {
		return
	}
	first, second, _ := strings.Cut(params, ";")
	// The first parameter of a sequence is a count (n), or selects a variant (which).
	n, which := 1, 0
	if k, err := strconv.Atoi(first); err == nil {
		n, which = min(max(1, k), maxColumnsPerSequence), k
	}
	switch finalByte {
	case 'm':
		r.applyColourSequence("\x1b[" + params + "m")
	case 'C', 'a':
		r.moveToColumn(r.column + n)
	case 'D':
		r.moveToColumn(r.column - n)
	case 'G', '`':
		r.moveToColumn(n - 1)
	case 'A', 'B', 'd', 'e':
		r.moveToOtherLine(r.column)
	case 'E', 'F':
		r.moveToOtherLine(0)
	case 'H', 'f':
		column, _ := strconv.Atoi(second)
		r.moveToOtherLine(max(0, min(column, maxColumnsPerSequence)-1))
	case 's':
		r.savedColumn = r.column
	case 'u':
		r.column = r.savedColumn
	case 'J', 'K':
		r.eraseLine(which)
	case 'X':
		r.eraseColumns(r.column, min(r.column+n, len(r.cells)))
	case 'P', '@':
		r.insertOrDeleteCells(n, finalByte == '@')
	case 'b':
		char, _ := utf8.DecodeRuneInString(r.lastCharacter)
		for i := 0; i < n && r.lastCharacter != ""; i++ {
			r.putCharacter(r.lastCharacter, CharacterWidth(char))
		}
	}
}

// setAlternateScreen enters or leaves the alternate screen. If a text that starts in the middle of an output leaves
// that screen without having entered it, the text before was on that screen. setAlternateScreen then drops that text.
func (r *Renderer) setAlternateScreen(on bool) {
	if !on && r.StartsMidOutput && !r.usedAlternateScreen {
		r.finishedLines.Reset()
		r.cells, r.column = r.cells[:0], 0
	}
	r.onAlternateScreen, r.usedAlternateScreen = on, true
}

// applyColourSequence applies a colour sequence.
func (r *Renderer) applyColourSequence(sequence string) {
	if !r.KeepColours || LeadingColourSequenceBytes(sequence) == 0 {
		return
	}
	params := strings.TrimLeft(sequence[2:len(sequence)-1], "0;")
	switch {
	case params == "":
		r.activeStyle = ""
		return
	case strings.HasPrefix(sequence, "\x1b[0;"):
		r.activeStyle = ""
	}
	if strings.HasSuffix(r.activeStyle, sequence) {
		return
	}
	r.activeStyle += sequence
	for len(r.activeStyle) > maxStyleBytes {
		r.activeStyle = r.activeStyle[strings.Index(r.activeStyle[1:], "\x1b")+1:]
	}
}

// moveToColumn moves the cursor to a column of the current line.
func (r *Renderer) moveToColumn(column int) {
	r.column = max(0, min(column, max(len(r.cells), maxColumnsPerSequence)))
}

// moveToOtherLine moves the cursor to a column of another line. It finishes the current line, unless that is
// empty.
func (r *Renderer) moveToOtherLine(column int) {
	if r.onAlternateScreen {
		return
	}
	if len(r.cells) > 0 {
		r.finishLine("\n", column)
	}
	r.column = column
}

// finishLine outputs the current line followed by lineEnd, and moves the cursor to a column of the next line.
func (r *Renderer) finishLine(lineEnd string, column int) {
	r.finishedLines.WriteString(r.CurrentLine() + lineEnd)
	r.cells, r.column = r.cells[:0], column
}

// putCharacter puts a character at the cursor.
func (r *Renderer) putCharacter(text string, columns int) {
	if r.onAlternateScreen {
		return
	}
	r.lastCharacter = text
	r.padToColumn(r.column + columns)
	r.eraseColumns(r.column, r.column+columns)
	for range columns {
		r.cells[r.column] = cell{text, r.activeStyle}
		r.column++
		text = ""
	}
	if len(r.cells) >= maxLineColumns {
		r.finishLine("", 0)
	}
}

// padToColumn appends spaces up to a column.
func (r *Renderer) padToColumn(column int) {
	for len(r.cells) < column {
		r.cells = append(r.cells, cell{text: " "})
	}
}

// characterStartColumn returns the first column of the character that covers a column.
func (r *Renderer) characterStartColumn(column int) int {
	for column > 0 && r.cells[column].text == "" {
		column--
	}
	return column
}

// eraseColumns replaces columns with spaces. If it erases one half of a wide character, it erases the
// other half too.
func (r *Renderer) eraseColumns(firstColumn, endColumn int) {
	if firstColumn >= endColumn {
		return
	}
	for firstColumn = r.characterStartColumn(firstColumn); firstColumn < endColumn ||
		firstColumn < len(r.cells) && r.cells[firstColumn].text == ""; firstColumn++ {
		r.cells[firstColumn] = cell{text: " "}
	}
}

// eraseLine erases a part of the line: from the cursor to the end if eraseMode is 0, up to the cursor if it is 1,
// and otherwise the whole line.
func (r *Renderer) eraseLine(eraseMode int) {
	end := min(r.column, len(r.cells))
	switch eraseMode {
	case 0:
		r.eraseColumns(end, len(r.cells))
		r.cells = r.cells[:end]
	case 1:
		r.eraseColumns(0, min(end+1, len(r.cells)))
	default:
		r.cells = r.cells[:0]
	}
}

// insertOrDeleteCells inserts n spaces at the cursor or, if insert is false, deletes n columns there.
func (r *Renderer) insertOrDeleteCells(n int, insert bool) {
	if r.column >= len(r.cells) {
		return
	}
	if insert {
		if r.cells[r.column].text == "" {
			r.eraseColumns(r.column, r.column+1)
		}
		rest := slices.Clone(r.cells[r.column:])
		r.cells = r.cells[:r.column]
		r.padToColumn(r.column + n)
		r.cells = append(r.cells, rest...)
		r.cells = r.cells[:min(len(r.cells), maxLineColumns-1)]
		return
	}
	end := min(r.column+n, len(r.cells))
	r.eraseColumns(r.column, end)
	r.cells = slices.Delete(r.cells, r.column, end)
}
