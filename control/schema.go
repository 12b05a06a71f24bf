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

// MethodSchema describes the parameters and the results of a method.
type MethodSchema struct {
	Method             string         `json:"method"`
	Right              Right          `json:"right"`
	RightForOthersJobs Right          `json:"right_others,omitempty"` // right for other users' jobs; "" if it equals Right
	Params             map[string]any `json:"params"`
	// NotificationSchema describes the value in each notification of the method. It is nil if the method sends
	// none.
	NotificationSchema map[string]any `json:"tells,omitempty"`
	Result             map[string]any `json:"result"`
}

// Schemas describes all methods by JSON Schemas (draft 2020-12). It generates them from the Go types of parameters and
// results, and from the rulesets with which the server checks requests. The server rejects parameters that are not in
// the schema, while later versions may add members to results. maxLength in a schema counts characters, but the server
// counts bytes of UTF-8. So the server may reject a non-ASCII text that the schema accepts.
func Schemas() []MethodSchema {
	list := make([]MethodSchema, len(Methods()))
	for i, m := range Methods() {
		list[i] = MethodSchema{Method: m.Name, Right: m.Right, Params: withSchemaVersion(paramsSchema(m.paramsType)),
			Result: withSchemaVersion(schemaOfType(m.resultType))}
		if m.RightForOthersJobs != m.Right {
			list[i].RightForOthersJobs = m.RightForOthersJobs
		}
		if m.notificationType != nil {
			list[i].NotificationSchema = withSchemaVersion(schemaOfType(m.notificationType))
		}
	}
	return list
}

func withSchemaVersion(s schema) schema {
	s["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	return s
}

// StructSchema returns the JSON Schema of a struct type.
func StructSchema(t reflect.Type) map[string]any { return schemaOfType(t) }

// schemaOfJSONTypes returns the schema that accepts all values of these JSON types.
func schemaOfJSONTypes(jsonTypes ...string) schema {
	if len(jsonTypes) == 1 {
		return schema{"type": jsonTypes[0]}
	}
	return schema{"type": jsonTypes}
}

// allowNull changes the schema s so that it also accepts null, and returns s.
func allowNull(s schema) schema {
	if kinds := schemaTypes(s); kinds != nil && !slices.Contains(kinds, "null") {
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

// These are patterns for texts that have no queue.TextFormat.
const (
	decimalDigitsPattern = `([0-9]+[.]?[0-9]*|[.][0-9]+)`
	decimalNumberPattern = decimalDigitsPattern + `([eE][+-]?[0-9]+)?`
	durationPattern      = `^(` + decimalNumberPattern + `|(` + decimalDigitsPattern + `(ns|us|µs|ms|s|m|h|d|w))+)$`
	sizePattern          = `^ *` + decimalNumberPattern + ` *([kKmMgGtTpP]([iI]?[bB])?|[bB])? *$`
	timePattern          = `^(19[7-9][0-9]|[2-9][0-9]{3})-[0-9]{2}-[0-9]{2}T[0-9:]{8}([.][0-9]+)?(Z|[+-][0-9:]{5})$`
	base64Pattern        = `^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$`
)

// customEncodingSchema returns the schema of a type with its own JSON encoding, or nil for other types.
func customEncodingSchema(t reflect.Type) schema {
	switch t {
	case reflect.TypeFor[JobID]():
		return schemaOfJSONTypes("string", "integer")
	case reflect.TypeFor[JobIDs]():
		return schema{"type": []string{"string", "integer", "array"}, "items": schemaOfJSONTypes("string", "integer")}
	case reflect.TypeFor[TextList]():
		return schema{"type": []string{"string", "array"}, "items": schemaOfJSONTypes("string")}
	case reflect.TypeFor[Labels]():
		text := schema{"type": "string", "maxLength": queue.MaxLabelBytes}
		names := schema{"minLength": 1, "maxLength": queue.MaxLabelBytes}
		return schema{"type": "object", "additionalProperties": text, "propertyNames": names}
	case reflect.TypeFor[Time]():
		return schema{"type": []string{"string", "null"}, "format": "date-time", "pattern": timePattern}
	case reflect.TypeFor[Duration]():
		return durationSchema(0)
	case reflect.TypeFor[RetentionAge]():
		s := durationSchema(1)
		s["pattern"] = "^(never|default)$|" + durationPattern
		return s
	case reflect.TypeFor[SettingValue]():
		return schemaOfJSONTypes("string", "number", "boolean")
	case reflect.TypeFor[json.RawMessage]():
		return schema{}
	case reflect.TypeFor[[]byte]():
		return schema{"type": "string", "contentEncoding": "base64", "pattern": base64Pattern}
	case reflect.TypeFor[queue.Spec]():
		return jobSchema(&jobFieldPolicy{describesNewJob: true})
	}
	return nil
}

// durationSchema returns the schema of a duration of at least minSeconds.
func durationSchema(minSeconds float64) schema {
	most := queue.MaxDuration.Seconds()
	return schema{"type": []string{"number", "string"}, "minimum": minSeconds, "maximum": most, "pattern": durationPattern}
}

// fieldKindSchema returns the part of a job field's schema that depends only on the kind of the field.
func fieldKindSchema(f *queue.Field) schema {
	switch f.Kind {
	case queue.KindInteger:
		return schemaOfJSONTypes("integer")
	case queue.KindNumber:
		return schemaOfJSONTypes("number")
	case queue.KindDuration:
		return durationSchema(0)
	case queue.KindTime:
		return schema{"type": "string", "format": "date-time", "pattern": timePattern}
	case queue.KindSize:
		return schema{"type": []string{"integer", "string"}, "minimum": 0, "pattern": sizePattern}
	case queue.KindBool:
		return schemaOfJSONTypes("boolean")
	case queue.KindList:
		return schema{"type": "array", "items": schemaOfJSONTypes("string")}
	case queue.KindMap:
		return schema{"type": "object", "additionalProperties": schemaOfJSONTypes("string")}
	case queue.KindExitCodes:
		return schema{"type": "array", "items": schemaOfJSONTypes("integer")}
	}
	return schemaOfJSONTypes("string")
}

// fieldSchema returns the schema of a job field. If allowNullEntries is true, an entry of a map may be null, which
// removes the entry.
func fieldSchema(f *queue.Field, allowNullEntries bool) schema {
	s := fieldKindSchema(f)
	switch f.Name { // these fields accept values that their kind does not describe
	case "id":
		s = schema{"type": []string{"string", "integer"}, "minimum": 0}
	case "depends_on":
		s["items"] = schema{"type": []string{"string", "integer"}, "minimum": 0}
	case "resources":
		s["additionalProperties"] = schemaOfJSONTypes("string", "integer")
	case "umask":
		s["pattern"] = "^0*[0-7]{1,3}$"
	}
	if c := queue.FieldConstraint(f.Name); c != nil {
		addConstraint(s, c)
	}
	if entry, ok := s["additionalProperties"].(schema); ok && allowNullEntries {
		allowNull(entry)
	}
	s["description"] = f.Usage()
	return allowNull(s)
}

// jobSchema returns the schema of an object that contains job fields. The schema includes the rules about which
// fields require or exclude each other.
func jobSchema(allowedFields *jobFieldPolicy) schema {
	properties := schema{}
	names := map[string][]string{} // JSON names (the name and the alias) of each field, by its name
	var rules []schema
	for _, f := range queue.SpecFields() {
		for _, name := range []string{f.Name, f.Alias} {
			// The client replaces env_pass by the values of the variables, so the service does not accept
			// env_pass.
			if name != "" && name != "env_pass" && !slices.Contains(allowedFields.excludedFields, name) {
				properties[name] = fieldSchema(&f, !allowedFields.describesNewJob)
				names[f.Name] = append(names[f.Name], name)
			}
		}
		if all := names[f.Name]; len(all) == 2 {
			rules = append(rules, schema{"not": schema{"required": all}})
		}
	}
	for i := range queue.FieldRules {
		r := &queue.FieldRules[i]
		own, otherNames := names[r.Field], names[r.OtherField]
		if !allowedFields.describesNewJob && r.RequiresOtherField || len(own) == 0 || len(otherNames) == 0 &&
			!r.RequiresOtherField {
			continue // do not require the other field, because the existing job may already have it
		}
		kind := forbidBothSets
		if r.RequiresOtherField {
			kind = requireSetBWithA
		}
		a, b := anyFieldGivenSchema(own, properties), anyFieldGivenSchema(otherNames, properties)
		rules = append(rules, kind.toSchema(a, b))
	}
	s := schema{"type": "object", "properties": properties, "additionalProperties": false}
	if allowedFields.describesNewJob {
		rules = append(rules, anyFieldGivenSchema([]string{"command", "argv"}, properties))
	}
	if allowedFields.editsExistingJobs {
		s["minProperties"] = 1
		s["dependentRequired"] = schema{queue.JointEditFields.Field: []string{queue.JointEditFields.RequiredField}}
	}
	copyNonZeroMembers(s, schema{"allOf": rules})
	return s
}

// copyNonZeroMembers copies to target those of the given members whose values are not zero.
func copyNonZeroMembers(target, members schema) {
	for name, value := range members {
		if !reflect.ValueOf(value).IsZero() {
			target[name] = value
		}
	}
}

// anyFieldGivenSchema returns the schema of an object in which at least one of these fields is set: its value
// is not null, false or an empty map.
func anyFieldGivenSchema(names []string, fieldSchemas schema) schema {
	return anyMemberSchema(names, func(name string) schema {
		property := fieldSchemas[name].(schema)
		kinds := slices.DeleteFunc(slices.Clone(schemaTypes(property)), func(kind string) bool { return kind == "null" })
		given := schemaOfJSONTypes(kinds...)
		switch kinds[0] {
		case "boolean":
			given = schema{"const": true}
		case "object":
			given["minProperties"] = 1
		}
		return given
	})
}

// anyMemberSchema returns the schema of an object with at least one of the named members. memberSchema returns
// the schema of a member's value; nil means any value.
func anyMemberSchema(names []string, memberSchema func(name string) schema) schema {
	list := make([]schema, len(names))
	for i, name := range names {
		list[i] = schema{"required": []string{name}}
		if s := memberSchema(name); s != nil {
			list[i]["properties"] = schema{name: s}
		}
	}
	if len(list) == 1 {
		return list[0]
	}
	return schema{"anyOf": list}
}

// addConstraint adds a constraint to the schema of the values to which the constraint applies.
func addConstraint(s schema, c *queue.Constraint) {
	kinds := schemaTypes(s)
	if r := c.NumberRange; r != nil {
		bounded := s
		for _, entries := range []string{"items", "additionalProperties"} {
			if entry, ok := s[entries].(schema); ok {
				bounded = entry
			}
		}
		bounded["minimum"], bounded["maximum"] = r.Min, r.Max
		if r.ExclusiveMin {
			delete(bounded, "minimum")
			bounded["exclusiveMinimum"] = r.Min
		}
	}
	if slices.Contains(kinds, "string") {
		addTextConstraint(s, c)
	}
	switch {
	case slices.Contains(kinds, "array"):
		addEntryConstraint(s, c, "items", "minItems", "maxItems")
	case slices.Contains(kinds, "object"):
		addEntryConstraint(s, c, "additionalProperties", "minProperties", "maxProperties")
	}
}

// addTextConstraint adds the parts of a constraint that apply to text.
func addTextConstraint(s schema, c *queue.Constraint) {
	array := slices.Contains(schemaTypes(s), "array")
	switch {
	case c.Enum != nil && !array:
		s["enum"] = c.Enum
	case c.Enum != nil: // a single text is also allowed instead of a list
		s["pattern"] = "^(" + strings.Join(c.Enum, "|") + ")$"
	case c.TextFormat != nil:
		s["pattern"] = c.TextFormat.Pattern
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

// addEntryConstraint adds the parts of a constraint that apply to the entries of a list or map, and to their
// number. entriesKeyword, minKeyword and maxKeyword are the keywords of JSON Schema for the entries and for
// their minimum and maximum number.
func addEntryConstraint(s schema, c *queue.Constraint, entriesKeyword, minKeyword, maxKeyword string) {
	copyNonZeroMembers(s, schema{minKeyword: c.MinItems, maxKeyword: c.MaxItems, "uniqueItems": c.NoDuplicates})
	entry, _ := s[entriesKeyword].(schema)
	copyNonZeroMembers(entry, schema{"enum": c.Enum, "maxLength": c.MaxBytes})
	if c.EntryFormat != nil {
		entry["pattern"] = c.EntryFormat.Pattern
	}
	if c.NotEmpty && entriesKeyword == "items" {
		first := maps.Clone(entry)
		first["minLength"] = 1
		s["prefixItems"] = []schema{first}
	}
	if c.MapNameFormat == nil {
		return
	}
	names := schema{"pattern": c.MapNameFormat.Pattern}
	copyNonZeroMembers(names, schema{"maxLength": c.MaxMapNameBytes})
	if c.ReservedMapNames != nil {
		names["not"] = schema{"enum": c.ReservedMapNames}
	}
	s["propertyNames"] = names
}

// paramsSchema returns the schema of a type of parameters, generated from its ruleset.
func paramsSchema(t reflect.Type) schema {
	s := schema{"type": "object", "additionalProperties": false}
	own := fieldsByJSONName(reflect.New(t).Elem())
	switch t {
	case reflect.TypeFor[EnqueueParams]():
		s = jobSchema(&jobFieldPolicy{describesNewJob: true})
	case reflect.TypeFor[ScheduleAddParams]():
		s = scheduleSchema()
	}
	properties, _ := s["properties"].(schema)
	if properties == nil {
		properties = schema{}
		s["properties"] = properties
	}
	rules := rulesetOfType(t)
	var required []string
	for i := range rules.params {
		p := &rules.params[i]
		properties[p.name] = p.schema(own[p.name].Type())
		if p.required {
			required = append(required, p.name)
		}
	}
	all, _ := s["allOf"].([]schema)
	for _, g := range rules.conditions {
		all = append(all, g.kind.toSchema(rules.anyParamGivenSchema(strings.Fields(g.paramSetA), own),
			rules.anyParamGivenSchema(strings.Fields(g.paramSetB), own)))
	}
	copyNonZeroMembers(s, schema{"required": required, "allOf": all})
	return s
}

// schema returns the schema of the parameter p, whose Go type is t.
func (p *param) schema(t reflect.Type) schema {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	s := schemaOfType(t)
	if p.allowedJobFields != nil {
		s = jobSchema(p.allowedJobFields)
	}
	if t == reflect.TypeFor[Time]() {
		s["type"] = "string" // the same type, but without null
	}
	addConstraint(s, &p.Constraint)
	s["description"] = p.doc
	return s
}

// anyParamGivenSchema returns the schema of a request in which at least one of the names is given. A name is the name
// of a parameter, of a value class, or of a numeric job field. params contains the parameters of the method by name.
// anyParamGivenSchema changes the list of names.
func (r *ruleset) anyParamGivenSchema(names []string, params map[string]reflect.Value) schema {
	marked := map[string]schema{}
	for i, name := range names {
		for _, p := range r.params {
			for _, m := range p.valueClasses {
				if m.className == name {
					names[i], marked[p.name] = p.name, m.schema
				}
			}
		}
	}
	return anyMemberSchema(names, func(name string) schema {
		switch {
		case marked[name] != nil:
			return marked[name]
		case !params[name].IsValid(): // the name is that of a numeric job field
			return schemaOfJSONTypes("integer")
		case params[name].Kind() == reflect.Bool:
			return schema{"const": true}
		case params[name].Kind() == reflect.Slice && params[name].Type() != reflect.TypeFor[[]byte]():
			return schema{"minItems": 1}
		}
		return nil
	})
}

// schemaOfType returns the schema of the JSON values to which a Go type is encoded.
func schemaOfType(t reflect.Type) schema {
	if s := customEncodingSchema(t); s != nil {
		return s
	}
	switch t.Kind() {
	case reflect.Pointer:
		return allowNull(schemaOfType(t.Elem()))
	case reflect.Bool:
		return schemaOfJSONTypes("boolean")
	case reflect.Int, reflect.Int64:
		return schemaOfJSONTypes("integer")
	case reflect.Float64:
		return schemaOfJSONTypes("number")
	case reflect.String:
		return schemaOfJSONTypes("string")
	case reflect.Interface:
		return schema{} // any value
	case reflect.Slice:
		return schema{"type": "array", "items": schemaOfType(t.Elem())}
	case reflect.Map:
		return schema{"type": "object", "additionalProperties": schemaOfType(t.Elem())}
	case reflect.Struct:
		return structSchema(t)
	}
	panic("control: the protocol does not support the type " + t.String())
}

func structSchema(t reflect.Type) schema {
	properties := schema{}
	var required []string
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous || name == "-" {
			continue
		}
		properties[name] = schemaOfType(f.Type)
		if !strings.Contains(options, "omit") {
			required = append(required, name)
		}
	}
	s := schema{"type": "object", "properties": properties}
	copyNonZeroMembers(s, schema{"required": required})
	return s
}
