package control

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// decodeParams decodes a JSON object into a struct and checks it with the ruleset of the struct's type. The error for
// an unknown name suggests a similar known name. A field of type json.RawMessage shares its bytes with paramsJSON.
func decodeParams(paramsJSON json.RawMessage, paramsStruct any) error {
	if paramsJSON == nil || string(paramsJSON) == "null" {
		paramsJSON = json.RawMessage("{}")
	}
	if own, ok := paramsStruct.(interface{ decode(json.RawMessage) error }); ok {
		return own.decode(paramsJSON)
	}
	d := newParamDecoder(paramsStruct)
	if err := queue.EachMember(paramsJSON, d.decode); err != nil {
		return err
	}
	if err := d.checkGivenParams(); err != nil {
		return err
	}
	if own, ok := paramsStruct.(interface{ checkGivenParams() error }); ok {
		return own.checkGivenParams()
	}
	return nil
}

// paramDecoder decodes the parameters of one request into a struct and checks them with the ruleset of the
// struct's type.
type paramDecoder struct {
	ruleset           *ruleset
	fieldsByParamName map[string]reflect.Value // fields of the struct by the names of their parameters
	// givenParamsAndClasses contains the names of the parameters in the request. A parameter maps to false if its value is
	// false or an empty list, else to true. For each of these parameters, givenParamsAndClasses also contains the names of
	// its value classes (see valueClass). A value class maps to true if the value of the parameter is in the class.
	givenParamsAndClasses map[string]bool
}

// newParamDecoder returns a decoder that stores parameters in *paramsStruct.
func newParamDecoder(paramsStruct any) *paramDecoder {
	v := reflect.ValueOf(paramsStruct).Elem()
	return &paramDecoder{rulesetOfType(v.Type()), fieldsByJSONName(v), map[string]bool{}}
}

// decode decodes the parameter paramName into the field of the same name and checks the value.
func (d *paramDecoder) decode(paramName string, value json.RawMessage) error {
	field, ok := d.fieldsByParamName[paramName]
	if !ok {
		near := queue.DidYouMean(paramName, slices.Collect(maps.Keys(d.fieldsByParamName)))
		return queue.InvalidFieldError(paramName, "unknown parameter of this method%s", near)
	}
	p := d.ruleset.param(paramName)
	if string(value) == "null" {
		return queue.InvalidFieldError(paramName, "must not be null; leave the parameter out")
	}
	if p.allowedJobFields != nil {
		if err := checkJobFields(paramName, value); err != nil {
			return err
		}
	}
	d.givenParamsAndClasses[paramName] = string(value) != "false" && !isEmptyList(value)
	if err := decodeParam(paramName, value, field.Addr().Interface()); err != nil {
		return err
	}
	d.recordValueClasses(p, field)
	return p.checkValue(field)
}

// recordValueClasses records in givenParamsAndClasses, for each value class of the parameter, whether the value is in
// the class.
func (d *paramDecoder) recordValueClasses(p *param, field reflect.Value) {
	for _, m := range p.valueClasses {
		d.givenParamsAndClasses[m.className] = m.matches(field)
	}
}

func isEmptyList(value json.RawMessage) bool {
	return value[0] == '[' && len(bytes.TrimSpace(value[1:len(value)-1])) == 0
}

// checkJobFields returns an error if the value is not a JSON object, or if the object has a member that is not a job
// field.
func checkJobFields(paramName string, value json.RawMessage) error {
	if value[0] != '{' {
		return queue.InvalidFieldError(paramName, "must be an object with job fields, like {\"priority\": 5}")
	}
	return queue.EachMember(value, func(field string, _ json.RawMessage) error { return queue.CheckFieldName(field) })
}

// checkGivenParams returns an error if a required parameter is missing or if two given parameters exclude each other.
func (d *paramDecoder) checkGivenParams() error {
	return d.ruleset.checkGivenParams(d.givenParamsAndClasses)
}

// decodeParam decodes the value of a parameter into *target. Its errors contain paramName.
func decodeParam(paramName string, value json.RawMessage, target any) error {
	if raw, ok := target.(*json.RawMessage); ok {
		*raw = value
		return nil
	}
	_, isBytes := target.(*[]byte)
	if value[0] == '"' {
		if err := queue.CheckSurrogates(value); err != nil {
			return queue.InvalidFieldError(paramName, "%s", err)
		}
	}
	// Reject line breaks, which the API does not allow. Go's base64 decoder ignores line breaks, even escaped ones.
	if isBytes && bytes.IndexByte(value, '\\') >= 0 {
		return queue.InvalidFieldError(paramName, "must be text in base64, without line breaks")
	}
	err := json.Unmarshal(value, target)
	if isBytes && (err != nil || value[0] != '"') {
		return queue.InvalidFieldError(paramName, "must be text in base64")
	}
	var e *queue.Error
	var typeError *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &e) && e.Field == "":
		return queue.InvalidFieldError(paramName, "%s", e.Message)
	case errors.As(err, &e):
		return e
	case errors.As(err, &typeError) && strings.HasPrefix(typeError.Value, "number"):
		return queue.InvalidFieldError(paramName, "%s", invalidNumberError(typeError.Type, value))
	case errors.As(err, &typeError):
		return queue.InvalidFieldError(paramName, "must be %s, not %s", jsonTypeName(typeError.Type),
			queue.ClipForMessage(typeError.Value))
	}
	return queue.InvalidFieldError(paramName, "%v", err)
}

// invalidNumberError returns an error that says why a JSON number is invalid for a Go type.
func invalidNumberError(t reflect.Type, value json.RawMessage) (err error) {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		_, err = queue.ParseInteger(string(value))
	case reflect.Float64:
		_, err = queue.ParseNumber(string(value))
	}
	if err == nil {
		err = fmt.Errorf("must be %s, not a number", jsonTypeName(t))
	}
	return err
}

// jsonTypeName returns the name of the JSON type that corresponds to a Go type, for error messages.
func jsonTypeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Map, reflect.Struct:
		return "an object"
	case reflect.Slice:
		return "a list"
	}
	return "text"
}

// fieldsByJSONName returns the fields of a struct, by the names that they have in JSON.
func fieldsByJSONName(v reflect.Value) map[string]reflect.Value {
	named := map[string]reflect.Value{}
	for f, value := range v.Fields() {
		switch name := jsonFieldName(f); {
		case f.Anonymous:
			maps.Copy(named, fieldsByJSONName(value))
		case name != "-":
			named[name] = value
		}
	}
	return named
}

// jsonFieldName returns the name of a field in JSON, or "-" if the JSON does not contain the field.
func jsonFieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
