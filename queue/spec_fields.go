package queue

import (
	"encoding/json"
	"fmt"
	"time"
)

// This file contains the constructors of the rows of the table of fields.

//go:noinline
func get[T any](at func(*Spec) **T) func(*Spec) any {
	return func(s *Spec) any {
		if p := *at(s); p != nil {
			return *p
		}
		return nil
	}
}

func nilIfEmpty[T any](list []T) any {
	if list == nil {
		return nil
	}
	return list
}

func nilIfEmptyMap(m map[string]string) any {
	if m == nil {
		return nil
	}
	return m
}

// The row constructors below are marked noinline. Inlining would give each row its own copy of
// their closures and make the client 20 KB larger.

//go:noinline
func text(name, usage string, at func(*Spec) **string) Field {
	return Field{name, "", KindText, usage, func(s *Spec, v json.RawMessage) error {
		t, err := readText(v)
		if err != nil {
			return err
		}
		*at(s) = &t
		return nil
	}, get(at)}
}

//go:noinline
func size(name, usage string, at func(*Spec) **int64) Field {
	return Field{name, "", KindSize, usage, func(s *Spec, v json.RawMessage) error { return setSize(at(s), v) }, get(at)}
}

//go:noinline
func integer(name, usage string, at func(*Spec) **int64) Field {
	return Field{name, "", KindInteger, usage, func(s *Spec, v json.RawMessage) error {
		n, err := readInteger(v)
		if err != nil {
			return err
		}
		*at(s) = &n
		return nil
	}, get(at)}
}

//go:noinline
func number(name, usage string, at func(*Spec) **float64) Field {
	return Field{name, "", KindNumber, usage, func(s *Spec, v json.RawMessage) error {
		if !isNumber(v) {
			return fmt.Errorf("must be a number, without quotes")
		}
		n, err := ReadNumber(string(v))
		if err != nil {
			return err
		}
		*at(s) = &n
		return nil
	}, get(at)}
}

//go:noinline
func duration(name, usage string, at func(*Spec) **time.Duration) Field {
	return Field{name, "", KindDuration, usage, func(s *Spec, v json.RawMessage) error {
		d, err := ReadDuration(v)
		if err != nil {
			return err
		}
		*at(s) = &d
		return nil
	}, func(s *Spec) any {
		if p := *at(s); p != nil {
			return FormatDuration(*p)
		}
		return nil
	}}
}

//go:noinline
func instant(name, alias, usage string, at func(*Spec) **Millis) Field {
	return Field{name, alias, KindInstant, usage, func(s *Spec, v json.RawMessage) error {
		t, err := readText(v)
		if err != nil {
			return err
		}
		m, err := ParseInstant(t)
		if err != nil {
			return err
		}
		*at(s) = &m
		return nil
	}, func(s *Spec) any {
		if p := *at(s); p != nil {
			return p.String()
		}
		return nil
	}}
}
