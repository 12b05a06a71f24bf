package config

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// commentLines returns a text as comment lines of at most 80 columns.
func commentLines(text string) string {
	var b strings.Builder
	columns := 0
	for word := range strings.FieldsSeq(text) {
		size := utf8.RuneCountInString(word)
		switch {
		case columns == 0:
			b.WriteString("#")
			columns = 1
		case columns+1+size > 80:
			b.WriteString("\n#")
			columns = 1
		}
		b.WriteString(" " + word)
		columns += 1 + size
	}
	return b.String() + "\n"
}

// Example returns the text of queuectl.toml.example, which lists every setting with its default.
func Example() string {
	var b strings.Builder
	b.WriteString(commentLines("Settings of queuectl. This file lists every setting with its default; your own " +
		"file needs only the " +
		"settings that differ. Write durations as text like \"90s\" or \"1h30m\", or as seconds, and sizes as text like " +
		"\"64K\" or \"1MiB\", or as bytes."))
	in := ""
	for _, k := range AllSettings() {
		name := k.Name
		if table, key, dotted := strings.Cut(name, "."); dotted {
			if table != in {
				fmt.Fprintf(&b, "\n%s[%s]\n", commentLines(descriptionsByName()["["+table+"]"]), table)
				in = table
			}
			name = key
		}
		b.WriteString("\n" + commentLines(k.Description()))
		if others := k.Aliases(); len(others) > 0 {
			fmt.Fprintf(&b, "# (other accepted names: %s)\n", strings.Join(others, ", "))
		}
		value := k.DefaultText
		_, err := strconv.ParseFloat(value, 64)
		switch {
		case value == "true", value == "false":
		case isListSetting(k.Name) && value == noneWord:
			value = "[]"
		case err != nil || len(value) > 1 && value[0] == '0':
			// A number with a leading zero is octal here, but TOML does not allow a leading zero. So write the number as text.
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&b, "%s = %s\n", name, value)
	}
	return b.String()
}
