package main

import (
	"errors"
	"fmt"
	"html"
	"os"
	"regexp"
	"strings"
	"unicode/utf8"
)

// These constants are sizes in the picture, in SVG units.
const (
	svgCharWidth  = 8.43 // the width of a character at font size 14
	svgLineHeight = 20
	svgMargin     = 16
)

// cssClassByColourCode maps the colour codes in queuectl's output to the CSS classes in screenPictureStyle.
var cssClassByColourCode = map[string]string{"31": "bad", "32": "fine", "33": "warn", "34": "run"}

// screenPictureStyle contains the picture's colours, for light and dark mode.
const screenPictureStyle = `<style>
.window{fill:#fcfcfa;stroke:#7f838a}text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1b1d20;white-space:pre}
.run{fill:#0b5cab}.warn{fill:#8a5200}.bad{fill:#b4231a}.fine{fill:#1b7a3d}
@media(prefers-color-scheme:dark){.window{fill:#131517;stroke:#70757d}text{fill:#e4e5e3}.run{fill:#7db6f2}.warn{fill:#e3ad55}.bad{fill:#ff8b7e}.fine{fill:#7bc894}}
</style>
`

// colourSequencePattern matches a sequence that sets colours on a terminal.
var colourSequencePattern = regexp.MustCompile("\x1b\\[([0-9;]*)m")

// renderSVG returns a terminal's content as an SVG.
func renderSVG(screenText string) string {
	var text strings.Builder
	shownLines := append([]string{"$ queuectl"}, strings.Split(strings.TrimRight(screenText, "\n"), "\n")...)
	widest := 0
	for i, line := range shownLines {
		widest = max(widest, utf8.RuneCountInString(colourSequencePattern.ReplaceAllString(line, "")))
		fmt.Fprintf(&text, `<text x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", svgMargin, svgMargin+14+i*svgLineHeight,
			lineToSVG(line))
	}
	width, height := int(float64(widest)*svgCharWidth)+2*svgMargin, len(shownLines)*svgLineHeight+2*svgMargin
	return fmt.Sprintf(
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="queuectl on a terminal: running jobs, jobs up next, recent failures and finished jobs">
%s<rect class="window" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>
%s</svg>
`, width, height, screenPictureStyle, width-1, height-1, text.String())
}

// lineToSVG converts a line with colour sequences to SVG.
func lineToSVG(line string) string {
	var b strings.Builder
	open := ""
	for len(line) > 0 {
		at := colourSequencePattern.FindStringSubmatchIndex(line)
		if at == nil {
			break
		}
		b.WriteString(html.EscapeString(line[:at[0]]) + open)
		open = ""
		if class := cssClassByColourCode[line[at[2]:at[3]]]; class != "" {
			fmt.Fprintf(&b, `<tspan class="%s">`, class)
			open = "</tspan>"
		}
		line = line[at[1]:]
	}
	return b.String() + html.EscapeString(line) + open
}

var (
	svgTagPattern = regexp.MustCompile(`(?s)<style>.*?</style>|<[^>]*>`)
	// numberOrTimePattern matches numbers and times, and the date before a time that is not today.
	numberOrTimePattern = regexp.MustCompile(`([A-Z]\w\w \d+ [A-Z]\w\w )?[\d.:]+(ms|[smh])?(\d+[sm])?`)
	spacesPattern       = regexp.MustCompile(` +`)
)

// svgTextWithoutNumbers returns the text of a picture without its numbers, because the numbers depend on the
// time at which the picture was created.
func svgTextWithoutNumbers(svg string) string {
	return spacesPattern.ReplaceAllString(
		numberOrTimePattern.ReplaceAllString(svgTagPattern.ReplaceAllString(svg, ""), "N"), " ")
}

const screenPicturePath = "docs/screen.svg"

// updateScreenPicture creates the picture of the default screen again if the text of the screen has changed. If
// checkOnly is true, it writes nothing and only reports whether the picture is up to date. On a system that cannot
// create the picture, it does nothing.
func updateScreenPicture(checkOnly bool) (upToDate bool, err error) {
	shown, err := captureExampleScreen()
	if errors.Is(err, errors.ErrUnsupported) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", screenPicturePath, err)
	}
	svg := renderSVG(shown)
	old, err := os.ReadFile(screenPicturePath)
	if err == nil && svgTextWithoutNumbers(string(old)) == svgTextWithoutNumbers(svg) {
		return true, nil
	}
	if checkOnly {
		return false, fmt.Errorf("%s is out of date; run: make pages", screenPicturePath)
	}
	err = os.WriteFile(screenPicturePath, []byte(svg), 0o644)
	return err == nil, err
}
