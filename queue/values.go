package queue

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The functions below read the JSON value of one field. Their errors say what the value must be.

func readText(v json.RawMessage) (string, error) {
	if v[0] != '"' {
		return "", fmt.Errorf("must be text")
	}
	return Text(v)
}

func readInteger(v json.RawMessage) (int64, error) {
	if !isNumber(v) {
		return 0, fmt.Errorf("must be a whole number, without quotes")
	}
	return ReadInteger(string(v))
}

// isNumber reports whether a JSON value is a number.
func isNumber(v json.RawMessage) bool { return v[0] == '-' || v[0] >= '0' && v[0] <= '9' }

// ReadDuration parses a JSON value that is a number of seconds, or a text like "90s".
func ReadDuration(v json.RawMessage) (time.Duration, error) {
	t := string(v)
	if v[0] == '"' {
		var err error
		if t, err = Text(v); err != nil {
			return 0, err
		}
	} else if !isNumber(v) {
		return 0, fmt.Errorf("must be a number of seconds, or text like \"90s\"")
	}
	return ParseDuration(t)
}

func setID(s *Spec, v json.RawMessage) error {
	id, err := textOrInteger(v)
	s.ID = &id
	return err
}

func setTimeoutMS(s *Spec, v json.RawMessage) error {
	ms, err := readInteger(v)
	if err != nil {
		return err
	}
	d, err := Seconds(float64(ms) / 1000)
	if err != nil {
		return err
	}
	if s.Timeout != nil && *s.Timeout != d {
		return fmt.Errorf(`differs from field "timeout"; use only one of them`)
	}
	s.Timeout = &d
	return nil
}

func setUmask(s *Spec, v json.RawMessage) error {
	t, err := readText(v)
	if err != nil {
		return fmt.Errorf("must be an octal number in quotes, like \"022\"")
	}
	n, err := strconv.ParseUint(t, 8, 16)
	if err != nil || n > 0o777 {
		return fmt.Errorf("%q is not an octal umask; write it like 022", Clip(t))
	}
	umask := int(n)
	s.Umask = &umask
	return nil
}

func getUmask(s *Spec) any {
	if s.Umask == nil {
		return nil
	}
	return fmt.Sprintf("%03o", *s.Umask)
}

func setBool(to **bool, v json.RawMessage) error {
	b := string(v) == "true"
	if !b && string(v) != "false" {
		return fmt.Errorf("must be true or false")
	}
	*to = &b
	return nil
}

func setSize(to **int64, v json.RawMessage) error {
	t := string(v)
	if v[0] == '"' {
		var err error
		if t, err = Text(v); err != nil {
			return err
		}
	} else if !isNumber(v) {
		return fmt.Errorf("must be a number of bytes, or text like \"64MiB\"")
	} else if _, err := ReadInteger(t); err != nil {
		return err
	}
	n, err := ParseSize(t)
	if err != nil {
		return err
	}
	*to = &n
	return nil
}

func setList(to *[]string, v json.RawMessage) error {
	n := 0
	err := Elements(v, func(json.RawMessage) error {
		if n++; n > MaxArgsEnv { // each entry takes at least one byte
			return fmt.Errorf("too many entries; the maximum is %d", MaxArgsEnv)
		}
		return nil
	})
	if err != nil {
		return err
	}
	list := make([]string, 0, n)
	err = Elements(v, func(e json.RawMessage) error {
		t, err := readText(e)
		list = append(list, t)
		if err != nil {
			return fmt.Errorf("entry %d %w", len(list), err)
		}
		return nil
	})
	*to = list
	return err
}

// setNames reads a list of texts. If an entry is an integer, the text is its digits.
func setNames(to *[]string, v json.RawMessage) error {
	list := []string{}
	err := Elements(v, func(e json.RawMessage) error {
		if len(list) == MaxDependencies {
			return fmt.Errorf("too many entries; the maximum is %d", MaxDependencies)
		}
		t, err := textOrInteger(e)
		list = append(list, t)
		if err != nil {
			return fmt.Errorf("entry %d %w", len(list), err)
		}
		return nil
	})
	*to = list
	return err
}

// textOrInteger returns a text, or the decimal digits of an integer.
func textOrInteger(v json.RawMessage) (string, error) {
	if t := string(v); strings.Trim(t, "-0123456789") == "" { // valid JSON of digits and -, so an integer
		return t, nil
	}
	if v[0] != '"' {
		return "", fmt.Errorf("must be text or a whole number")
	}
	return Text(v)
}

func setAmounts(to *map[string]string, v json.RawMessage) error {
	m := map[string]string{}
	err := Members(v, func(name string, value json.RawMessage) error {
		if len(m) == MaxDemands {
			return fmt.Errorf("too many entries; the maximum is %d", MaxDemands)
		}
		t, err := textOrInteger(value)
		m[name] = t
		if err != nil {
			return fmt.Errorf("%s %w", Clip(name), err)
		}
		return nil
	})
	*to = m
	return err
}

func setMap(to *map[string]string, v json.RawMessage, maxEntries int) error {
	m := map[string]string{}
	err := Members(v, func(name string, value json.RawMessage) error {
		if len(m) == maxEntries {
			return fmt.Errorf("too many entries; the maximum is %d", maxEntries)
		}
		t, err := readText(value)
		if err != nil {
			return fmt.Errorf("%s %w", Clip(name), err)
		}
		m[name] = t
		return nil
	})
	*to = m
	return err
}

func setCodes(to *[]int, v json.RawMessage) error {
	list := []int{}
	err := Elements(v, func(e json.RawMessage) error {
		if len(list) == MaxExitCodes {
			return fmt.Errorf("too many entries; the maximum is %d", MaxExitCodes)
		}
		n, err := readInteger(e)
		list = append(list, int(n))
		if err != nil || n < 0 || n > maxExitCode {
			return fmt.Errorf("must be a list of exit codes; use numbers from 0 to %d", int64(maxExitCode))
		}
		return nil
	})
	*to = list
	return err
}
