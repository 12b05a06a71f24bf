package control

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/queuectl/queuectl/queue"
)

// schema is a JSON Schema, draft 2020-12.
type schema = map[string]any

// MethodSchema describes what a method takes and gives.
type MethodSchema struct {
	Method string         `json:"method"`
	Right  Right          `json:"right"`
	Others Right          `json:"right_others,omitempty"` // on what is another's, where that is more
	Params map[string]any `json:"params"`
	Tells  map[string]any `json:"tells,omitempty"` // the value of each notification of a stream
	Result map[string]any `json:"result"`
}

// Schemas describes all methods by JSON Schemas (draft 2020-12), made from the types
// that the wire is read into and written from. Parameters that they do not name are
// refused; members of results that they do not name may come in later versions.
func Schemas() []MethodSchema {
	list := make([]MethodSchema, len(Methods()))
	for i, m := range Methods() {
		list[i] = MethodSchema{Method: m.Name, Right: m.Right, Params: whole(m.does.params, true), Result: whole(m.does.result, false)}
		if m.Others != m.Right {
			list[i].Others = m.Others
		}
		if m.does.tells != nil {
			list[i].Tells = whole(m.does.tells, false)
		}
	}
	return list
}

func whole(t reflect.Type, input bool) schema {
	s := schemaOf(t, input)
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	return s
}

func oneOf(types ...string) schema { return schema{"type": types} }

// written describes the types that write and read their JSON themselves.
func written(t reflect.Type) schema {
	switch t {
	case reflect.TypeFor[Name]():
		return oneOf("string", "integer")
	case reflect.TypeFor[Names]():
		return schema{"type": []string{"string", "integer", "array"}, "items": oneOf("string", "integer"), "maxItems": MaxNames}
	case reflect.TypeFor[Texts]():
		return schema{"type": []string{"string", "array"}, "items": oneOf("string"), "maxItems": MaxTexts}
	case reflect.TypeFor[Labels]():
		return schema{"type": "object", "additionalProperties": oneOf("string"), "maxProperties": queue.MaxLabels}
	case reflect.TypeFor[Time]():
		return schema{"type": []string{"string", "null"}, "format": "date-time"}
	case reflect.TypeFor[Span]():
		return oneOf("number", "string")
	case reflect.TypeFor[Scalar]():
		return oneOf("string", "number", "boolean")
	case reflect.TypeFor[json.RawMessage]():
		return schema{}
	case reflect.TypeFor[[]byte]():
		return schema{"type": "string", "contentEncoding": "base64"}
	case reflect.TypeFor[ScheduleAdd]():
		return scheduleSchema()
	case reflect.TypeFor[queue.Spec]():
		return specSchema()
	case reflect.TypeFor[Enqueue]():
		s := specSchema()
		s["properties"].(schema)["key"] = schema{"type": "string", "maxLength": queue.MaxKey, "description": "makes the request repeatable"}
		s["properties"].(schema)["require_limits"] = schema{"type": "boolean", "description": "refuse a job with a limit that is not enforced here"}
		return s
	}
	return nil
}

// specSchema describes the fields of a job.
func specSchema() schema {
	fields := schema{}
	for _, f := range queue.Fields() {
		s := map[queue.Kind]schema{
			queue.KindText: oneOf("string"), queue.KindInteger: oneOf("integer"), queue.KindNumber: oneOf("number"),
			queue.KindDuration: oneOf("number", "string"), queue.KindInstant: {"type": "string", "format": "date-time"},
			queue.KindSize: oneOf("integer", "string"), queue.KindBool: oneOf("boolean"),
			queue.KindList:  {"type": "array", "items": oneOf("string")},
			queue.KindMap:   {"type": "object", "additionalProperties": oneOf("string")},
			queue.KindCodes: {"type": "array", "items": schema{"type": "integer", "minimum": 0, "maximum": 255}},
		}[f.Kind]
		if f.Name == "id" || f.Name == "umask" {
			s = oneOf("string", "integer")
		}
		s["type"] = append(slices.Clone(types(s)), "null")
		s["description"] = f.Usage
		fields[f.Name] = s
		if f.Alias != "" {
			fields[f.Alias] = maps.Clone(s)
		}
	}
	return schema{"type": "object", "properties": fields, "additionalProperties": false}
}

func types(s schema) []string {
	if one, ok := s["type"].(string); ok {
		return []string{one}
	}
	return s["type"].([]string)
}

func schemaOf(t reflect.Type, input bool) schema {
	if s := written(t); s != nil {
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		s := schemaOf(t.Elem(), input)
		if s["type"] != nil {
			s["type"] = append(slices.Clone(types(s)), "null")
		}
		return s
	case reflect.Bool:
		return oneOf("boolean")
	case reflect.Int, reflect.Int64:
		return oneOf("integer")
	case reflect.Float64:
		return oneOf("number")
	case reflect.String:
		return oneOf("string")
	case reflect.Interface:
		return schema{} // anything
	case reflect.Slice:
		return schema{"type": "array", "items": schemaOf(t.Elem(), input)}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": schemaOf(t.Elem(), input)}
	case reflect.Struct:
		return structSchema(t, input)
	}
	panic("control: a type that the wire does not know: " + t.String())
}

func structSchema(t reflect.Type, input bool) schema {
	fields, required := schema{}, []string{}
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		for f := range t.Fields() {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous:
				add(f.Type)
			case name != "-":
				fields[name] = schemaOf(f.Type, input)
				if !strings.Contains(options, "omit") {
					required = append(required, name)
				}
			}
		}
	}
	add(t)
	s := schema{"type": "object", "properties": fields}
	if input {
		s["additionalProperties"] = false
	} else if len(required) > 0 {
		s["required"] = required
	}
	return s
}
