package queue

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"
)

// The functions in this file read and write the value of one field of a spec.

// set sets the field from a JSON value. Its errors say what the value must be.
func (f *Field) set(s *Spec, v json.RawMessage) (err error) {
	switch to := f.memberOf(s).Addr().Interface().(type) {
	case **string:
		return readInto(to, v, f.readText)
	case **int64:
		if f.Kind == KindSize {
			return readInto(to, v, readSize)
		}
		return readInto(to, v, decodeInteger)
	case **float64:
		return readInto(to, v, readNumber)
	case **time.Duration:
		if f.Kind == KindInteger {
			return setTimeoutMS(to, v)
		}
		return readInto(to, v, DecodeDuration)
	case **Millis:
		return readInto(to, v, readTime)
	case **bool:
		return readInto(to, v, readBool)
	case **int:
		return readInto(to, v, readUmask)
	case *[]string:
		*to, err = f.readList(v)
	case *map[string]string:
		*to, err = f.readMap(v)
	case *[]int:
		*to, err = readExitCodes(v)
	}
	return err
}

// readInto decodes v with the given function and makes *to point to the decoded value.
func readInto[T any](to **T, v json.RawMessage, read func(json.RawMessage) (T, error)) error {
	value, err := read(v)
	if err == nil {
		*to = &value
	}
	return err
}

// memberOf returns the member of a spec that holds the value of the field.
func (f *Field) memberOf(s *Spec) reflect.Value { return reflect.ValueOf(s).Elem().Field(f.member) }

// get returns the value of the field as it is written to JSON, or nil if the field is not set. For timeout_ms
// it always returns nil, because the field timeout contains the value.
func (f *Field) get(s *Spec) any {
	member := f.memberOf(s)
	if member.IsNil() {
		return nil
	}
	switch value := member.Interface().(type) {
	case *time.Duration:
		if f.Kind != KindDuration {
			return nil
		}
		return FormatDuration(*value)
	case *Millis:
		return value.String()
	case *int:
		return fmt.Sprintf("%03o", *value)
	}
	return reflect.Indirect(member).Interface()
}

// acceptsNumbersAsText reports whether the field accepts a whole number in JSON where a text is expected. Job ids
// and amounts are often numbers.
func (f *Field) acceptsNumbersAsText() bool {
	return f.Name == "id" || f.Name == "depends_on" || f.Name == "resources"
}

// maxEntries returns the maximum number of entries of a list or a map in the field.
func (f *Field) maxEntries() int {
	if f.constraint == nil {
		return MaxArgsEnvBytes // enough, because each entry takes at least one byte
	}
	return f.constraint.MaxItems
}
