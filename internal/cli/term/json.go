package term

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// PrintJSON prints one value as JSON on one line.
func (o *Output) PrintJSON(v any) error { return WriteJSON(o.Writer(), v) }

// WriteJSON writes one value as JSON on one line. It escapes characters that could control a
// terminal.
func WriteJSON(w io.Writer, v any) error { return encodeJSON(w, v, "") }

// encodeJSON writes one value as JSON with the given indentation, and escapes characters that could
// control a terminal.
func encodeJSON(w io.Writer, v any, indent string) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", indent)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeControlCharacters(b.Bytes()))
	return err
}

// escapeControlCharacters escapes characters in JSON text that can control a terminal but that JSON does not escape
// itself: DEL, the C1 control characters and the bidirectional controls. A JSON decoder gets the same value from the
// result.
func escapeControlCharacters(raw []byte) []byte {
	if !bytes.ContainsFunc(raw, isControlCharacter) {
		return raw
	}
	var b bytes.Buffer
	for _, r := range string(raw) {
		if isControlCharacter(r) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.Bytes()
}

// isControlCharacter reports whether a character may change how a terminal shows other characters. It returns false for
// characters below U+0020, because JSON always escapes them.
func isControlCharacter(r rune) bool {
	return r >= 0x7f && r < 0xa0 || r >= 0x61c && unicode.Is(unicode.Bidi_Control, r)
}

// JSONListPrinter prints a list as JSON, element by element: as one array, or one element per line.
type JSONListPrinter struct {
	writer      io.Writer
	separator   string // printed before the next element of an array: "[" before the first one, ",\n" before all others
	asJSONLines bool
}

// NewJSONListPrinter returns an empty list that prints to a writer: one element per line if asJSONLines is true,
// otherwise one array.
func NewJSONListPrinter(w io.Writer, asJSONLines bool) *JSONListPrinter {
	return &JSONListPrinter{w, "[", asJSONLines}
}

// Add prints the next element.
func (l *JSONListPrinter) Add(v any) error {
	if l.asJSONLines {
		return WriteJSON(l.writer, v)
	}
	b := bytes.NewBufferString(l.separator)
	l.separator = ",\n"
	if err := WriteJSON(b, v); err != nil {
		return err
	}
	_, err := l.writer.Write(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	return err
}

// End prints the end of an array, and its beginning if no element was added.
func (l *JSONListPrinter) End() error {
	if l.asJSONLines {
		return nil
	}
	_, err := io.WriteString(l.writer, strings.TrimSuffix(l.separator, ",\n")+"]\n")
	return err
}

// PrintJSONList prints a list as one JSON array or, with --jsonl, one element per line.
func PrintJSONList[T any](o *Output, list []T) error {
	if !o.JSONL {
		if list == nil {
			list = []T{}
		}
		return o.PrintJSON(list)
	}
	for _, v := range list {
		if err := o.PrintJSON(v); err != nil {
			return err
		}
	}
	return nil
}

// PrintIndentedJSON prints a value as JSON. It indents the JSON unless --json or --jsonl is set.
func (o *Output) PrintIndentedJSON(v any) error {
	if o.WantsJSON() {
		return o.PrintJSON(v)
	}
	return encodeJSON(o.Stdout, v, "  ")
}
