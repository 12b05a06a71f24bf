package queue

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"time"
)

// The functions in this file read and write the value of one field of a spec.

// setJSON sets the field from a JSON value. Its errors say what the value must be.
func (f *Field) setJSON(s *Spec, v json.RawMessage) (err error) {
	switch to := f.specMember(s).Addr().Interface().(type) {
	case **string:
		return decodeInto(to, v, f.decodeText)
	case **int64:
		if f.Kind == KindSize {
			return decodeInto(to, v, decodeSize)
		}
		return decodeInto(to, v, decodeInteger)
	case **float64:
		return decodeInto(to, v, decodeNumber)
	case **time.Duration:
		if f.Kind == KindInteger {
			return setTimeoutMS(to, v)
		}
		return decodeInto(to, v, DecodeDuration)
	case **UnixMillis:
		return decodeInto(to, v, decodeTime)
	case **bool:
		return decodeInto(to, v, decodeBool)
	case **int:
		return decodeInto(to, v, decodeUmask)
	case *[]string:
		*to, err = f.decodeList(v)
	case *map[string]string:
		*to, err = f.decodeMap(v)
	case *[]int:
		*to, err = decodeExitCodes(v)
	}
	return err
}

// decodeInto decodes v with the given function and makes *target point to the decoded value.
func decodeInto[T any](target **T, v json.RawMessage, decode func(json.RawMessage) (T, error)) error {
	value, err := decode(v)
	if err == nil {
		*target = &value
	}
	return err
}

// specMember returns the member of Spec that holds the value of the field.
func (f *Field) specMember(s *Spec) reflect.Value {
	return reflect.ValueOf(s).Elem().Field(f.specMemberIndex)
}

// copyOfMap returns a copy of the map in the field. The copy is empty if the field is not set.
func (f *Field) copyOfMap(s *Spec) map[string]string {
	entries := map[string]string{}
	maps.Copy(entries, f.specMember(s).Interface().(map[string]string))
	return entries
}

// jsonValue returns the value of the field for JSON, or nil if the field is not set. For timeout_ms it always returns
// nil, because the same value is already written as timeout.
func (f *Field) jsonValue(s *Spec) any {
	member := f.specMember(s)
	if member.IsNil() {
		return nil
	}
	switch value := member.Interface().(type) {
	case *time.Duration:
		if f.Kind != KindDuration {
			return nil
		}
		return FormatDuration(*value)
	case *UnixMillis:
		return value.String()
	case *int:
		return fmt.Sprintf("%03o", *value)
	}
	return reflect.Indirect(member).Interface()
}

// acceptsNumbersAsText reports whether the field is a text that may also be a whole number in JSON. Job ids and amounts
// often consist of digits, so clients may send them without quotes.
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
