package queue

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The functions below read the JSON value of one field. Each error says what the value must be.

func decodeText(v json.RawMessage) (string, error) {
	if v[0] != '"' {
		return "", fmt.Errorf("must be text")
	}
	return DecodeJSONString(v)
}

func decodeInteger(v json.RawMessage) (int64, error) {
	if !isJSONNumber(v) {
		return 0, fmt.Errorf("must be a whole number, without quotes")
	}
	return ParseInteger(string(v))
}

func isJSONNumber(v json.RawMessage) bool { return v[0] == '-' || v[0] >= '0' && v[0] <= '9' }

func decodeNumber(v json.RawMessage) (float64, error) {
	if !isJSONNumber(v) {
		return 0, fmt.Errorf("must be a number, without quotes")
	}
	return ParseNumber(string(v))
}

// decodeTextOrNumber returns the text of a JSON string, or a JSON number as text. For any other value, the error says
// that the value must be as in description.
func decodeTextOrNumber(v json.RawMessage, description string) (string, error) {
	switch {
	case v[0] == '"':
		return DecodeJSONString(v)
	case isJSONNumber(v):
		return string(v), nil
	}
	return "", fmt.Errorf("must be %s", description)
}

// DecodeDuration parses a duration in JSON: a number of seconds, or a text like "90s".
func DecodeDuration(v json.RawMessage) (time.Duration, error) {
	t, err := decodeTextOrNumber(v, `a number of seconds, or text like "90s"`)
	if err != nil {
		return 0, err
	}
	return ParseDuration(t)
}

func decodeSize(v json.RawMessage) (int64, error) {
	t, err := decodeTextOrNumber(v, `a number of bytes, or text like "64MiB"`)
	if err == nil && v[0] != '"' {
		_, err = ParseInteger(t)
	}
	if err != nil {
		return 0, err
	}
	return ParseSize(t)
}

func decodeTime(v json.RawMessage) (UnixMillis, error) {
	t, err := decodeText(v)
	if err != nil {
		return 0, err
	}
	return ParseTime(t)
}

// setTimeoutMS sets *timeout to a value in milliseconds. If the field timeout has already set *timeout to a different
// value, setTimeoutMS returns an error.
func setTimeoutMS(timeout **time.Duration, v json.RawMessage) error {
	ms, err := decodeInteger(v)
	if err != nil {
		return err
	}
	d, err := DurationOfSeconds(float64(ms) / 1000)
	if err != nil {
		return err
	}
	if *timeout != nil && **timeout != d {
		return fmt.Errorf(`differs from field "timeout"; use only one of them`)
	}
	*timeout = &d
	return nil
}

func decodeUmask(v json.RawMessage) (int, error) {
	t, err := decodeText(v)
	if err != nil {
		return 0, fmt.Errorf("must be an octal number in quotes, like \"022\"")
	}
	n, err := strconv.ParseUint(t, 8, 16)
	if err != nil || n > 0o777 {
		return 0, fmt.Errorf("%q is not an octal umask; write it like 022", ClipForMessage(t))
	}
	return int(n), nil
}

func decodeBool(v json.RawMessage) (bool, error) {
	b := string(v) == "true"
	if !b && string(v) != "false" {
		return false, fmt.Errorf("must be true or false")
	}
	return b, nil
}

// decodeText reads a text of the field: its value, or one entry of a list or map.
func (f *Field) decodeText(v json.RawMessage) (string, error) {
	if !f.acceptsNumbersAsText() {
		return decodeText(v)
	}
	if t := string(v); strings.Trim(t, "-0123456789") == "" { // v consists of digits and -, so it is an integer
		return t, nil
	}
	if v[0] != '"' {
		return "", fmt.Errorf("must be text or a whole number")
	}
	return DecodeJSONString(v)
}

// decodeList reads a list of texts. The result has no spare capacity, because many jobs may be in memory at the same
// time.
func (f *Field) decodeList(v json.RawMessage) ([]string, error) {
	list := []string{}
	err := EachElement(v, func(e json.RawMessage) error {
		if len(list) == f.maxEntries() {
			return fmt.Errorf("too many entries; the maximum is %d", f.maxEntries())
		}
		t, err := f.decodeText(e)
		list = append(list, t)
		if err != nil {
			return fmt.Errorf("entry %d %w", len(list), err)
		}
		return nil
	})
	return slices.Clone(list), err
}

func (f *Field) decodeMap(v json.RawMessage) (map[string]string, error) {
	m := map[string]string{}
	err := EachMember(v, func(name string, value json.RawMessage) error {
		if len(m) == f.maxEntries() {
			return fmt.Errorf("too many entries; the maximum is %d", f.maxEntries())
		}
		t, err := f.decodeText(value)
		if err != nil {
			return fmt.Errorf("%s %w", ClipForMessage(name), err)
		}
		m[name] = t
		return nil
	})
	return m, err
}

func decodeExitCodes(v json.RawMessage) ([]int, error) {
	list := []int{}
	err := EachElement(v, func(e json.RawMessage) error {
		if len(list) == MaxExitCodes {
			return fmt.Errorf("too many entries; the maximum is %d", MaxExitCodes)
		}
		n, err := decodeInteger(e)
		list = append(list, int(n))
		if err != nil || n < 0 || n > maxExitCode {
			return fmt.Errorf("must be a list of exit codes; use numbers from 0 to %d", int64(maxExitCode))
		}
		return nil
	})
	return list, err
}
