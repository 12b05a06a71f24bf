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

// Schemas describes all methods by JSON Schemas (draft 2020-12), made from the types that the wire is read into and
// written from, and from the rulesets and constraints that requests are checked by. Parameters that a schema does not
// name are refused; later versions may add members to results. Limits of texts are in bytes of UTF-8, so a text that is
// not ASCII can be refused though it is within maxLength.
func Schemas() []MethodSchema {
	list := make([]MethodSchema, len(Methods()))
	for i, m := range Methods() {
		params, result := complete(paramsSchema(m.does.params)), complete(schemaOf(m.does.result))
		list[i] = MethodSchema{Method: m.Name, Right: m.Right, Params: params, Result: result}
		if m.Others != m.Right {
			list[i].Others = m.Others
		}
		if m.does.tells != nil {
			list[i].Tells = complete(schemaOf(m.does.tells))
		}
	}
	return list
}

func complete(s schema) schema {
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	return s
}

// ResultSchema returns the schema of a value that is answered as JSON, of a struct's type.
func ResultSchema(t reflect.Type) map[string]any { return schemaOf(t) }

func is(kinds ...string) schema {
	if len(kinds) == 1 {
		return schema{"type": kinds[0]}
	}
	return schema{"type": kinds}
}

// orNull lets a schema permit null too.
func orNull(s schema) schema {
	if kinds := kindsOf(s); kinds != nil && !slices.Contains(kinds, "null") {
		s["type"] = append(slices.Clone(kinds), "null")
	}
	if words, ok := s["enum"].([]string); ok {
		list := make([]any, 0, len(words)+1)
		for _, w := range words {
			list = append(list, w)
		}
		s["enum"] = append(list, nil)
	}
	return s
}

// durationPattern is that of a duration as text.
const durationPattern = `^([0-9]+([.][0-9]+)?|([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h|d|w))+)$`

// sizePattern is that of a size as text.
const sizePattern = `^[0-9]+([.][0-9]+)? *([kKmMgGtTpP]([iI]?[bB])?|[bB])?$`

// jsonOf returns the schemas of types that write and read their JSON themselves, nil for others.
func jsonOf(t reflect.Type) schema {
	switch t {
	case reflect.TypeFor[Name]():
		return is("string", "integer")
	case reflect.TypeFor[Names]():
		return schema{"type": []string{"string", "integer", "array"}, "items": is("string", "integer")}
	case reflect.TypeFor[Texts]():
		return schema{"type": []string{"string", "array"}, "items": is("string")}
	case reflect.TypeFor[Labels]():
		return schema{"type": "object", "additionalProperties": is("string")}
	case reflect.TypeFor[Time]():
		return schema{"type": []string{"string", "null"}, "format": "date-time"}
	case reflect.TypeFor[Span]():
		return durationSchema(0)
	case reflect.TypeFor[Age]():
		s := durationSchema(1)
		s["pattern"] = "^(never|default)$|" + durationPattern
		return s
	case reflect.TypeFor[Scalar]():
		return is("string", "number", "boolean")
	case reflect.TypeFor[json.RawMessage]():
		return schema{}
	case reflect.TypeFor[[]byte]():
		return schema{"type": "string", "contentEncoding": "base64"}
	case reflect.TypeFor[queue.Spec]():
		return jobSchema(false)
	}
	return nil
}

// durationSchema describes a duration of at least least seconds.
func durationSchema(least float64) schema {
	most := queue.MaxDuration.Seconds()
	return schema{"type": []string{"number", "string"}, "minimum": least, "maximum": most, "pattern": durationPattern}
}

// fieldKind describes the values of a job's field by its kind.
func fieldKind(f *queue.Field) schema {
	switch f.Kind {
	case queue.KindInteger:
		return is("integer")
	case queue.KindNumber:
		return is("number")
	case queue.KindDuration:
		return durationSchema(0)
	case queue.KindInstant:
		return schema{"type": "string", "format": "date-time"}
	case queue.KindSize:
		return schema{"type": []string{"integer", "string"}, "minimum": 0, "pattern": sizePattern}
	case queue.KindBool:
		return is("boolean")
	case queue.KindList:
		return schema{"type": "array", "items": is("string")}
	case queue.KindMap:
		return schema{"type": "object", "additionalProperties": is("string")}
	case queue.KindCodes:
		return schema{"type": "array", "items": is("integer")}
	}
	return is("string")
}

// fieldSchema describes a field of a job. A patch removes entries of maps by null.
func fieldSchema(f *queue.Field, patch bool) schema {
	s := fieldKind(f)
	switch f.Name { // which take numbers for texts
	case "id", "rate_limit":
		s = schema{"type": []string{"string", "integer"}, "minimum": 0}
	case "depends_on":
		s["items"] = is("string", "integer")
	case "resources":
		s["additionalProperties"] = is("string", "integer")
	case "umask":
		s["pattern"] = "^0*[0-7]{1,3}$"
	}
	if c := queue.ConstraintOf(f.Name); c != nil {
		declare(s, c)
	}
	if entry, ok := s["additionalProperties"].(schema); ok && patch {
		orNull(entry)
	}
	s["description"] = f.Usage
	return orNull(s)
}

// jobSchema describes the fields of a job, or of a patch of one.
func jobSchema(patch bool) schema {
	properties := schema{}
	for _, f := range queue.Fields() {
		if f.Name == "env_pass" { // the client resolves it
			continue
		}
		s := fieldSchema(&f, patch)
		properties[f.Name] = s
		if f.Alias != "" {
			properties[f.Alias] = maps.Clone(s)
		}
	}
	s := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if !patch {
		given := func(name, kind string) schema {
			return schema{"required": []string{name}, "properties": schema{name: is(kind)}}
		}
		s["oneOf"] = []schema{given("command", "string"), given("argv", "array")}
	}
	return s
}

// declare adds what a constraint says to the schema of a value.
func declare(s schema, c *queue.Constraint) {
	kinds := kindsOf(s)
	if r := c.Range; r != nil {
		bounded := s
		if items, ok := s["items"].(schema); ok {
			bounded = items
		}
		bounded["minimum"], bounded["maximum"] = r.Min, r.Max
		if r.Above {
			delete(bounded, "minimum")
			bounded["exclusiveMinimum"] = r.Min
		}
	}
	if slices.Contains(kinds, "string") {
		declareText(s, c)
	}
	switch {
	case slices.Contains(kinds, "array"):
		declareEntries(s, c, "items", "minItems", "maxItems")
	case slices.Contains(kinds, "object"):
		declareEntries(s, c, "additionalProperties", "minProperties", "maxProperties")
	}
}

// declareText adds what a constraint says about a text.
func declareText(s schema, c *queue.Constraint) {
	array := slices.Contains(kindsOf(s), "array")
	switch {
	case c.Enum != nil && !array:
		s["enum"] = c.Enum
	case c.Enum != nil: // a single one instead of a list
		s["pattern"] = "^(" + strings.Join(c.Enum, "|") + ")$"
	case c.Text != nil:
		s["pattern"] = c.Text.Pattern
	}
	if c.NotEmpty {
		s["minLength"] = 1
	}
	if most := c.MaxBytes; most > 0 && !array {
		if s["contentEncoding"] != nil {
			most = (most + 2) / 3 * 4
		}
		s["maxLength"] = most
	}
}

// declareEntries adds what a constraint says about a list or a map, and about its entries.
func declareEntries(s schema, c *queue.Constraint, entries, least, most string) {
	if c.MinItems > 0 {
		s[least] = c.MinItems
	}
	if c.MaxItems > 0 {
		s[most] = c.MaxItems
	}
	entry, _ := s[entries].(schema)
	if c.Enum != nil {
		entry["enum"] = c.Enum
	}
	if c.Entries != nil {
		entry["pattern"] = c.Entries.Pattern
	}
	if c.MaxBytes > 0 {
		entry["maxLength"] = c.MaxBytes
	}
}

// paramsSchema describes the parameters of a method by the ruleset that they are checked by.
func paramsSchema(t reflect.Type) schema {
	s := schema{"type": "object", "additionalProperties": false}
	var own map[string]reflect.Value
	switch p := reflect.New(t).Interface().(type) {
	case *Enqueue:
		s, own = jobSchema(false), p.own()
	case *ScheduleAdd:
		s, own = scheduleSchema(), p.own()
	default:
		own = params(reflect.ValueOf(p).Elem())
	}
	properties, _ := s["properties"].(schema)
	if properties == nil {
		properties = schema{}
		s["properties"] = properties
	}
	rules := rulesOf(t)
	var required []string
	for i := range rules.params {
		p := &rules.params[i]
		properties[p.name] = p.schema(own[p.name].Type())
		if p.required {
			required = append(required, p.name)
		}
	}
	if required != nil {
		s["required"] = required
	}
	if len(rules.groups) > 0 {
		all := make([]schema, len(rules.groups))
		for i, g := range rules.groups {
			all[i] = g.declare(anyGiven(g.a, own), anyGiven(g.b, own))
		}
		s["allOf"] = all
	}
	return s
}

// schema describes a parameter of a type.
func (p *param) schema(t reflect.Type) schema {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := schemaOf(t)
	if p.fields {
		s = jobSchema(true)
	}
	if t == reflect.TypeFor[Time]() {
		s["type"] = "string" // what is not given is left out
	}
	declare(s, &p.Constraint)
	s["description"] = p.doc
	return s
}

// anyGiven is the schema of parameters of which one of these is given.
func anyGiven(names []string, own map[string]reflect.Value) schema {
	list := make([]schema, len(names))
	for i, name := range names {
		list[i] = schema{"required": []string{name}}
		if own[name].Kind() == reflect.Bool {
			list[i]["properties"] = schema{name: schema{"const": true}}
		}
	}
	if len(list) == 1 {
		return list[0]
	}
	return schema{"anyOf": list}
}

// schemaOf describes a type as it is written to the wire.
func schemaOf(t reflect.Type) schema {
	if s := jsonOf(t); s != nil {
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return orNull(schemaOf(t.Elem()))
	case reflect.Bool:
		return is("boolean")
	case reflect.Int, reflect.Int64:
		return is("integer")
	case reflect.Float64:
		return is("number")
	case reflect.String:
		return is("string")
	case reflect.Interface:
		return schema{} // anything
	case reflect.Slice:
		return schema{"type": "array", "items": schemaOf(t.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": schemaOf(t.Elem())}
	case reflect.Struct:
		return structSchema(t)
	}
	panic("control: a type that the wire does not know: " + t.String())
}

func structSchema(t reflect.Type) schema {
	properties, required := schema{}, []string{}
	var add func(t reflect.Type)
	add = func(t reflect.Type) {
		for f := range t.Fields() {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case f.Anonymous:
				add(f.Type)
			case name != "-":
				properties[name] = schemaOf(f.Type)
				if !strings.Contains(options, "omit") {
					required = append(required, name)
				}
			}
		}
	}
	add(t)
	s := schema{"type": "object", "properties": properties}
	if len(required) > 0 {
		s["required"] = required
	}
	return s
}
