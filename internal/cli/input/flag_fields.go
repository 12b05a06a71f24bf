package input

import (
	"cmp"
	"errors"
	"slices"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/queue"
)

// This file translates field names in errors into flags. The service names the invalid field of a request, like
// depends_on. But the user has typed a flag, like --after, so the client replaces the name of the field by the flag.

// fieldNameAnnotation is the annotation with the name of the field that a flag sets. Flags without the annotation
// set the field of the same name.
const fieldNameAnnotation = "field"

// AnnotateFlagWithField records which field of a request a flag sets. Only a flag whose name differs from the field's
// name needs this call.
func AnnotateFlagWithField(f *pflag.FlagSet, flag, field string) {
	if defaultFieldName(flag) != field {
		f.SetAnnotation(flag, fieldNameAnnotation, []string{field}) // this call fails only if the flag does not exist
	}
}

// defaultFieldName returns the field that a flag sets if the flag has no annotation.
func defaultFieldName(flag string) string { return strings.ReplaceAll(flag, "-", "_") }

// NameFlagsInError returns an error in which the names of invalid fields are replaced by the flags that the user typed
// to set them.
func NameFlagsInError(cmd *cobra.Command, err error) error {
	switch e := err.(type) {
	case nil:
		return nil
	case *queue.Error:
		if typed := FlagsByField(cmd); typed[e.Field] != "" {
			return &queue.Error{Code: e.Code, BatchIndex: e.BatchIndex, Field: typed[e.Field], Message: replaceFieldsByFlags(cmd,
				e.Message)}
		}
	case *fault.LineError:
		return &fault.LineError{InputUnitName: e.InputUnitName, LineNumber: e.LineNumber,
			Cause: NameFlagsInError(cmd, e.Cause)}
	case interface{ Unwrap() []error }:
		list := slices.Clone(e.Unwrap())
		for i := range list {
			list[i] = NameFlagsInError(cmd, list[i])
		}
		return errors.Join(list...)
	}
	return err
}

// replaceFieldsByFlags replaces field names in a message by the flags that set those fields.
//
// A field name without "_" can also be an ordinary word. So it is replaced only if it is in quotes after the word
// "field" or "parameter". This word is then removed. Several names may follow it, for example: fields "env" and "argv".
func replaceFieldsByFlags(cmd *cobra.Command, text string) string {
	typed, all := FlagsByField(cmd), mapFieldsToFlags(cmd.Flags().VisitAll)
	for _, noun := range []string{"the parameter", "parameter", "field"} {
		parts := strings.Split(text, noun)
		text = parts[0]
		for _, part := range parts[1:] {
			if flags, rest := replaceLeadingFieldNames(part, typed, all); flags != "" {
				text += flags + rest
			} else {
				text += noun + part
			}
		}
	}
	text = replaceFieldNames(text, typed)
	for field, flag := range typed {
		text = strings.ReplaceAll(text, "; "+field+":", "; "+flag+":")
	}
	return text
}

// replaceLeadingFieldNames replaces the field names at the start of a text by their flags. The text is, for example, `
// "since" and "until"` or ` run_at`. If a field has a flag in typedFlags and in allFlags, the flag in typedFlags is
// used.
//
// It returns the flags and the rest of the text. If one of the names has no flag, it returns no flags.
func replaceLeadingFieldNames(text string, typedFlags, allFlags map[string]string) (flags, rest string) {
	next, more := strings.CutPrefix(strings.TrimPrefix(text, "s"), " ")
	for separator := ""; more; {
		name, quoted := "", false
		if next, quoted = strings.CutPrefix(next, `"`); quoted {
			name, rest, _ = strings.Cut(next, `"`)
		} else {
			rest = strings.TrimLeftFunc(next, isNameRune)
			name = next[:len(next)-len(rest)]
		}
		flag := cmp.Or(typedFlags[name], allFlags[name])
		if flag == "" || !quoted && !strings.Contains(name, "_") {
			return "", ""
		}
		flags += separator + flag
		i := strings.IndexByte(rest, '"')
		if more = i > 0 && strings.Contains(", and or ", rest[:i]); more {
			separator, next = rest[:i], rest[i:]
		}
	}
	return flags, rest
}

// isNameRune reports whether the character may occur in the name of a field or the id of a job.
func isNameRune(r rune) bool {
	return r == '_' || r == '-' || unicode.IsLetter(r) || unicode.IsDigit(r)
}

// replaceFieldNames replaces field names that contain "_" by the flags in flagsByField. It does not replace a name
// inside a longer word, such as a job's id.
func replaceFieldNames(text string, flagsByField map[string]string) string {
	var result strings.Builder
	for text != "" {
		rest := strings.TrimLeftFunc(text, isNameRune)
		name := text[:len(text)-len(rest)]
		if strings.Contains(name, "_") {
			name = cmp.Or(flagsByField[name], name)
		}
		text = strings.TrimLeftFunc(rest, func(r rune) bool { return !isNameRune(r) })
		result.WriteString(name + rest[:len(rest)-len(text)])
	}
	return result.String()
}

// FlagsByField maps fields to the flags, like --after, with which the user set them.
func FlagsByField(cmd *cobra.Command) map[string]string {
	if cmd == nil {
		return nil
	}
	return mapFieldsToFlags(cmd.Flags().Visit)
}

// mapFieldsToFlags maps fields to the flags that set them. It considers the flags that visitFlags passes to its
// argument.
func mapFieldsToFlags(visitFlags func(func(*pflag.Flag))) map[string]string {
	typed := map[string]string{}
	visitFlags(func(f *pflag.Flag) { // visitFlags passes the flags in the order of their names
		field := defaultFieldName(f.Name)
		if of := f.Annotations[fieldNameAnnotation]; len(of) > 0 {
			field = of[0]
		}
		typed[field] = cmp.Or(typed[field], "--"+f.Name)
	})
	return typed
}
