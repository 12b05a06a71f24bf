// Package tomlfile reads settings from a TOML file. It is separate from package config, so that
// programs that read no file do not contain the TOML parser.
package tomlfile

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode"

	"github.com/BurntSushi/toml"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
)

// Read reads a settings file. If the file does not exist, Read returns no settings, or an error if mustExist is true.
// Errors about the content contain the line number.
func Read(path string, mustExist bool) (config.Layer, error) {
	raw, err := os.ReadFile(path)
	if err != nil && (mustExist || !errors.Is(err, os.ErrNotExist)) {
		return config.Layer{}, fmt.Errorf("cannot read the settings: %w", err)
	}
	return Parse(path, raw)
}

// ParseTables parses TOML text. It does not check whether the keys are settings. Error messages contain path.
func ParseTables(path string, tomlText []byte) (tables map[string]any, err error) {
	err = toml.Unmarshal(tomlText, &tables)
	var parseErr toml.ParseError
	switch {
	case errors.As(err, &parseErr):
		return nil, queue.Errorf(queue.CodeInvalid, "%s:%d: %s", path, lineOfParseError(tomlText, &parseErr),
			strings.Replace(parseErr.Message, `but got '\x00' instead`, "but the file ends", 1))
	case err != nil:
		return nil, queue.Errorf(queue.CodeInvalid, "%s: %v", path, err)
	}
	return tables, nil
}

// lineOfParseError returns the number of the line with a syntax error. If a line ends too early, the library reports
// the next line for some errors, because it has already read the newline. Otherwise, the reported line is correct.
func lineOfParseError(tomlText []byte, e *toml.ParseError) int {
	unexpected := strings.TrimRight(strings.TrimSuffix(e.Message, " instead"), `'"`)
	tokenLine := 1 + bytes.Count(tomlText[:min(e.Position.Start, len(tomlText))], []byte("\n"))
	if strings.HasSuffix(unexpected, `\n`) && tokenLine < e.Position.Line {
		return e.Position.Line - 1
	}
	return e.Position.Line
}

// layerSettersByTable contains the tables whose inner tables have names that the user chooses, such as
// [webhooks.NAME]. The value is the function that stores such a table as the text of a setting.
var layerSettersByTable = map[string]func(*config.Layer,
	map[string]any) error{"resources": (*config.Layer).SetResources,
	"webhooks": (*config.Layer).SetWebhooks}

// findInvalidKeyPath returns the path of the key that makes a table of layerSettersByTable invalid, so that the error
// can name the line of this key. It looks only at the first invalid inner table, in the order of the names. In this
// inner table, the invalid key is the one that meets two conditions: the error contains its name, and without the key,
// the error changes. If no key meets both conditions, findInvalidKeyPath returns the path of the inner table.
func findInvalidKeyPath(tableName string, table map[string]any,
	setTable func(*config.Layer, map[string]any) error) []string {
	wrong := func(innerName string, v any) string {
		return fmt.Sprint(setTable(&config.Layer{ValuesBySetting: map[string]string{}}, map[string]any{innerName: v}))
	}
	for _, below := range slices.Sorted(maps.Keys(table)) {
		of, _ := table[below].(map[string]any)
		fault := wrong(below, table[below])
		if fault == fmt.Sprint(error(nil)) {
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(of)) {
			without := maps.Clone(of)
			delete(without, key)
			if containsWord(fault, key) && wrong(below, without) != fault {
				return []string{tableName, below, key}
			}
		}
		return []string{tableName, below}
	}
	return []string{tableName}
}

func containsWord(text, word string) bool {
	inWord := func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }
	return slices.Contains(strings.FieldsFunc(text, func(r rune) bool { return !inWord(r) }), word)
}

// maxFileBytes is the maximum size of a settings file, in bytes.
const maxFileBytes = 1 << 20

// Parse parses the text of a settings file. Error messages contain path.
func Parse(path string, tomlText []byte) (config.Layer, error) {
	l := config.Layer{Origin: config.FromFile, ValuesBySetting: map[string]string{}}
	if len(tomlText) > maxFileBytes {
		return l, queue.Errorf(queue.CodeInvalid, "%s: the settings file is larger than the maximum of %s",
			path, queue.FormatSize(maxFileBytes))
	}
	file, err := ParseTables(path, tomlText)
	if err != nil {
		return l, err
	}
	var faults []error
	report := func(err error, keyPath ...string) {
		if err != nil {
			faults = append(faults, fmt.Errorf("%s:%d: %w", path, lineOfKey(tomlText, keyPath...), err))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(file)) {
		table, is := file[name].(map[string]any)
		if take := layerSettersByTable[name]; is && take != nil {
			if err := take(&l, table); err != nil {
				report(err, findInvalidKeyPath(name, table, take)...)
			}
			continue
		}
		if !is || !slices.Contains(config.SettingsTableNames, name) {
			report(l.Set(name, file[name]), name)
			continue
		}
		for _, key := range slices.Sorted(maps.Keys(table)) {
			report(l.Set(name+"."+key, table[key]), name, key)
		}
	}
	if len(faults) > 0 {
		return l, &queue.Error{Code: queue.CodeInvalid, Message: errors.Join(faults...).Error()}
	}
	return l, nil
}

// valueRejecter is a type into which no TOML value can be decoded. The error of such an attempt contains the line of
// the value's key, which lineOfKey needs.
type valueRejecter struct{}

func (valueRejecter) UnmarshalTOML(any) error { return errors.New("refused") }

// lineOfKey returns the line number of a key. keyPath contains the names of the enclosing tables and of the key.
// If the line is unknown, lineOfKey returns the line of the innermost table whose line is known, or else 1.
func lineOfKey(tomlText []byte, keyPath ...string) int {
	line := 1
	var table map[string]toml.Primitive
	meta, _ := toml.Decode(string(tomlText), &table) // ignore the error, because the caller has already parsed the text
	for _, name := range keyPath {
		value := table[name]
		line, table = max(line, firstLineOfValue(&meta, value)), nil
		meta.PrimitiveDecode(value, &table) // for the last key of the path, this call fails unless the key is a table
	}
	return line
}

// firstLineOfValue returns the line number of a value's key. A table that exists only through keys such as table.key
// has no line; for such a table, firstLineOfValue returns the first line of its content. It returns 0 if no line is
// known.
func firstLineOfValue(meta *toml.MetaData, value toml.Primitive) (line int) {
	var parseErr toml.ParseError
	if errors.As(meta.PrimitiveDecode(value, valueRejecter{}), &parseErr) && parseErr.Position.Line > 0 {
		return parseErr.Position.Line
	}
	var table map[string]toml.Primitive
	meta.PrimitiveDecode(value, &table)
	for _, child := range table {
		if n := firstLineOfValue(meta, child); n > 0 && (line == 0 || n < line) {
			line = n
		}
	}
	return line
}
