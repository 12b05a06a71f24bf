package queue

import (
	"regexp"
	"testing"

	"pgregory.net/rapid"
)

// textFormats returns the text formats of all job fields, and the formats of patterns and signals. The key of a format
// says where the format is used.
func textFormats() map[string]*TextFormat {
	signal := &TextFormat{Pattern: SignalPattern(), CheckText: func(text string) error {
		_, err := ParseSignal(text)
		return err
	}}
	all := map[string]*TextFormat{"glob": GlobFormat, "signal": signal}
	for name, c := range fieldConstraints() {
		for part, form := range map[string]*TextFormat{"": c.TextFormat, " entries": c.EntryFormat,
			" names": c.MapNameFormat} {
			if form != nil {
				all[name+part] = form
			}
		}
	}
	return all
}

// A text format accepts a text exactly if its pattern in the JSON Schema matches the text. mayRejectPatternMatch lists
// the exceptions.
func TestTextFormatsAcceptWhatPatternsMatch(t *testing.T) {
	for name, form := range textFormats() {
		t.Run(name, func(t *testing.T) {
			pattern := regexp.MustCompile(form.Pattern)
			matching := rapid.StringMatching(form.Pattern)
			other := rapid.SampledFrom([]string{
				"", "+", "-", ":", "=", "@", "0", "1x", " ", "\x00", "\n", "é", "/", "[", "]", "!",
			})
			rapid.Check(t, func(t *rapid.T) {
				text := matching.Draw(t, "text")
				at := rapid.IntRange(0, len(text)).Draw(t, "at")
				changed := text[:at] + other.Draw(t, "other") + text[at:]
				texts := []string{text, text[:at], changed, rapid.String().Draw(t, "any")}
				for _, text := range texts {
					got, want := checkTextFormat("x", text, form, 0) == nil, pattern.MatchString(text)
					if got != want && !mayRejectPatternMatch(form, text) {
						t.Fatalf("%q: accepted: %t, the pattern matches: %t", text, got, want)
					}
				}
			})
		})
	}
}

// mayRejectPatternMatch reports whether the format may reject a text that its pattern matches: a text that is too
// long, or a glob with a reversed range like [z-a].
func mayRejectPatternMatch(format *TextFormat, text string) bool {
	return len(text) > 250 || format == GlobFormat && regexp.MustCompile(`\[[^]]+-`).MatchString(text)
}
