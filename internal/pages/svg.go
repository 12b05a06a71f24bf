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
	charWidth  = 8.43 // the width of a character at font size 14
	lineHeight = 20
	margin     = 16
)

// colourClasses maps the colour codes in queuectl's output to the CSS classes in style.
var colourClasses = map[string]string{"31": "bad", "32": "fine", "33": "warn", "34": "run"}

// style contains the picture's colours, for light and dark mode.
const style = `<style>
.window{fill:#fcfcfa;stroke:#7f838a}text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#1b1d20;white-space:pre}
.run{fill:#0b5cab}.warn{fill:#8a5200}.bad{fill:#b4231a}.fine{fill:#1b7a3d}
@media(prefers-color-scheme:dark){.window{fill:#131517;stroke:#70757d}text{fill:#e4e5e3}.run{fill:#7db6f2}.warn{fill:#e3ad55}.bad{fill:#ff8b7e}.fine{fill:#7bc894}}
</style>
`

// colourPattern matches a sequence that sets colours on a terminal.
var colourPattern = regexp.MustCompile("\x1b\\[([0-9;]*)m")

// renderSVG returns a terminal's content as an SVG.
func renderSVG(screenText string) string {
	var text strings.Builder
	shownLines := append([]string{"$ queuectl"}, strings.Split(strings.TrimRight(screenText, "\n"), "\n")...)
	widest := 0
	for i, line := range shownLines {
		widest = max(widest, utf8.RuneCountInString(colourPattern.ReplaceAllString(line, "")))
		fmt.Fprintf(&text, `<text x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", margin, margin+14+i*lineHeight,
			lineToSVG(line))
	}
	width, height := int(float64(widest)*charWidth)+2*margin, len(shownLines)*lineHeight+2*margin
	return fmt.Sprintf(
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="queuectl on a terminal: running jobs, jobs up next, recent failures and finished jobs">
%s<rect class="window" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>
%s</svg>
`, width, height, style, width-1, height-1, text.String())
}

// lineToSVG converts a line with colour sequences to SVG.
func lineToSVG(line string) string {
	var b strings.Builder
	open := ""
	for len(line) > 0 {
		at := colourPattern.FindStringSubmatchIndex(line)
		if at == nil {
			break
		}
		b.WriteString(html.EscapeString(line[:at[0]]) + open)
		open = ""
		if class := colourClasses[line[at[2]:at[3]]]; class != "" {
			fmt.Fprintf(&b, `<tspan class="%s">`, class)
			open = "</tspan>"
		}
		line = line[at[1]:]
	}
	return b.String() + html.EscapeString(line) + open
}

var (
	tagPattern = regexp.MustCompile(`(?s)<style>.*?</style>|<[^>]*>`)
	// numberOrTimePattern matches numbers and times, and the date before a time that is not today.
	numberOrTimePattern = regexp.MustCompile(`([A-Z]\w\w \d+ [A-Z]\w\w )?[\d.:]+(ms|[smh])?(\d+[sm])?`)
	spacesPattern       = regexp.MustCompile(` +`)
)

// textWithoutNumbers returns the text of a picture without its numbers, because the numbers depend on the
// time at which the picture was created.
func textWithoutNumbers(svg string) string {
	return spacesPattern.ReplaceAllString(
		numberOrTimePattern.ReplaceAllString(tagPattern.ReplaceAllString(svg, ""), "N"), " ")
}

const picturePath = "docs/screen.svg"

// writePicture creates the picture of the default screen again if the text of the screen has changed. If
// checkOnly is true, it writes nothing and only reports whether the picture is up to date. On systems that
// cannot create the picture, it does nothing.
func writePicture(checkOnly bool) (upToDate bool, err error) {
	shown, err := captureScreen()
	if errors.Is(err, errors.ErrUnsupported) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", picturePath, err)
	}
	svg := renderSVG(shown)
	old, err := os.ReadFile(picturePath)
	if err == nil && textWithoutNumbers(string(old)) == textWithoutNumbers(svg) {
		return true, nil
	}
	if checkOnly {
		return false, fmt.Errorf("%s is out of date; run: make pages", picturePath)
	}
	err = os.WriteFile(picturePath, []byte(svg), 0o644)
	return err == nil, err
}
