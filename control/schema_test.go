package control

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/queuectl/queuectl/queue"
)

// compileSchema compiles a schema with an independent library, so that the tests do not rely on this project's
// own code.
func compileSchema(t *testing.T, name string, s map[string]any) *jsonschema.Schema {
	t.Helper()
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	compiled, err := c.Compile(name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return compiled
}

// schemaAccepts reports whether a schema accepts a value that is encoded as JSON.
func schemaAccepts(t *testing.T, s *jsonschema.Schema, valueJSON string) bool {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(valueJSON))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc) == nil
}

var testJobDefaults = queue.JobDefaults{MaxRetries: 3, KillAfter: time.Second, Shell: "/bin/sh -c",
	OnLost: queue.OnLostRetry}

// checkParams returns an error if a method rejects the parameters, whatever the state of the queue is.
func checkParams(m *Method, paramsJSON string) error {
	if err := queue.CheckJSON([]byte(paramsJSON)); err != nil {
		return err
	}
	p, err := m.decodeParams(json.RawMessage(paramsJSON))
	if err != nil {
		return err
	}
	specs := []queue.Spec{}
	switch p := p.(type) {
	case *EnqueueParams:
		specs = append(specs, p.JobSpec)
	case *ScheduleAddParams:
		specs = append(specs, p.JobSpec)
	case *EnqueueBatchParams:
		specs = p.Jobs
	case *JobEditParams:
		job := queue.Job{MaxAttempts: 1, ExecutionSettings: queue.ExecutionSettings{Command: "true", Shell: "sh",
			OnLost: queue.OnLostRetry}}
		return job.Edit(p.FieldsToSet, testJobDefaults)
	}
	for i := range specs {
		if _, err := queue.ResolveSpec(&specs[i], testJobDefaults); err != nil {
			return err
		}
	}
	return nil
}

// A method accepts a request without parameters if its schema does, and rejects it otherwise.
func TestSchemasDeclareRequiredParameters(t *testing.T) {
	for i, s := range Schemas() {
		err := checkParams(&Methods()[i], "{}")
		if permitted := schemaAccepts(t, compileSchema(t, s.Method, s.Params), "{}"); permitted != (err == nil) {
			t.Errorf("%s: the schema permits {}: %t; the method says: %v", s.Method, permitted, err)
		}
	}
}

// Every parameter has a description. If a schema allows a single JSON type, its member "type" is a string, not a
// list.
func TestSchemasDescribeEveryParameter(t *testing.T) {
	for _, s := range Schemas() {
		properties := s.Params["properties"].(schema)
		for name, p := range properties {
			if text, _ := p.(schema)["description"].(string); text == "" {
				t.Errorf("%s: %s has no description", s.Method, name)
			}
		}
		raw, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{"string", "integer", "number", "boolean", "array", "object", "null"} {
			if strings.Contains(string(raw), `"type":["`+kind+`"]`) {
				t.Errorf("%s: the schema has a list of one type: %s", s.Method, kind)
			}
		}
	}
}

// Every name in a tag "rule" and every type in the table of conditions exists.
func TestRuleTagsNameExistingConstraintsAndTypes(t *testing.T) {
	constraints, fields, classes, types := constraintsByRule(), jobFieldPolicies(), valueClassesByRule(),
		map[string]bool{}
	for _, m := range Methods() {
		types[m.paramsType.Name()] = true
		for _, f := range reflect.VisibleFields(m.paramsType) {
			tag, given := f.Tag.Lookup("rule")
			rule := strings.TrimSuffix(tag, ",required")
			_, known := constraints[rule]
			if given && !known && fields[rule] == nil && classes[rule] == nil {
				t.Errorf("%s.%s: there is no rule %q", m.paramsType.Name(), f.Name, rule)
			}
		}
	}
	for _, row := range paramConditionRows() {
		for name := range strings.FieldsSeq(row.paramTypeNames) {
			if !types[name] {
				t.Errorf("a condition names %s, which is not a type of parameters", name)
			}
		}
	}
}

// The ruleset of a method has exactly the parameters that the method's type has. parameters.txt describes
// exactly these parameters.
func TestRulesetsHaveExactlyTheMethodsParameters(t *testing.T) {
	unused := paramDescriptionsByName()
	for _, s := range Schemas() {
		kind := findMethod(s.Method).paramsType
		rules := rulesetOfType(kind)
		for name := range s.Params["properties"].(schema) {
			if rules.param(name) == nil && !slices.Contains(jobFieldNames(), name) {
				t.Errorf("%s: %s has no rule", s.Method, name)
			}
		}
		for name := range fieldsByJSONName(reflect.New(kind).Elem()) {
			if p := rules.param(name); p == nil || p.doc == "" {
				t.Errorf("%s: %s has no rule or no description", s.Method, name)
			}
			delete(unused, kind.Name()+"."+name)
		}
	}
	for name := range unused {
		t.Errorf("parameters.txt describes %s, which is not a parameter", name)
	}
}

// jobFieldNames returns the names and aliases of all job fields, and backoff_jitter.
func jobFieldNames() []string {
	names := []string{backoffJitter}
	for _, f := range queue.SpecFields() {
		names = append(names, f.Name, f.Alias)
	}
	return names
}

// exampleParamSets contains sets of parameters that some methods require. For each parameter of each method, examples
// contains a set to which the parameter can be added: the method then accepts the parameter with some value.
var exampleParamSets = []map[string]string{
	{}, {"id": `"a"`}, {"command": `"true"`}, {"name": `"a"`}, {"all": "true"}, {"yes": "true"},
	{"commit": "true", "jobs": `[{"command":"true"}]`}, {"count": "1"},
	{"name": `"a"`, "cron": `"@hourly"`, "command": `"true"`}, {"name": `"a"`, "cron": `"@hourly"`},
	{"name": `"a"`, "cron": `"@hourly"`, "command": `"true"`, "unique": `"a"`}, {"name": `"a"`,
		"cron": `"@hourly"`, "command": `"true"`, "env_secret": `{"A":"/x"}`},
	{"key": `"workers"`}, {"key": `"workers"`, "value": `"1"`},
	{"key": `"@a"`, "lock": "1"}, {"name": `"a"`, "weight": "1"}, {"set": `{"priority":1}`},
	{"id": `"a"`, "set": `{"priority":1}`}, {"unique": `"a"`,
		"command": `"true"`},
	{"batch": `"a"`}, {"key": `"@a"`}, {"cols": "80", "id": `"a"`}, {"rows": "24", "id": `"a"`}, {"id": `"a"`,
		"follow": "true"},
	{"env_secret": `{"A":"/x"}`, "command": `"true"`},
}

// jsonValuesToTry returns valid and invalid JSON values to try for a parameter.
func jsonValuesToTry(property schema) []string {
	list := []string{
		"null", "true", "false", "0", "1", "-1", "2", "0.5", "-0.001", "1e300", "100000", "999999999999", `""`,
		`" "`, `"a"`, `"a b"`, `"@a"`, `"/a"`, `"-"`,
		`"1"`, `"10/m"`, `"90s"`, `"never"`, `"2027-01-01T00:00:00Z"`, `"022"`, `"1GiB"`, `"é"`, `"a\u0000b"`, "[]",
		`["a"]`, "[1]", "[256]", `[true]`, "[[]]", "{}", `{"a":"b"}`, `{"":"b"}`, `{"a":1}`, `{"a":null}`,
		`"` + strings.Repeat("x", 129) + `"`, `"` + strings.Repeat("x", 257) + `"`,
		`"/` + strings.Repeat("x", 5000) + `"`, jsonArray(300, "1"), jsonArray(70, `"dead"`), jsonArray(1001, `"a"`),
		jsonObject(40),
	}
	collect := func(subschema schema) {
		for _, bound := range []string{"minimum", "maximum", "exclusiveMinimum"} {
			if n, ok := subschema[bound].(float64); ok {
				for _, v := range []float64{n - 1, n, n + 1} {
					raw, _ := json.Marshal(v) // a number can always be encoded
					list = append(list, string(raw), "["+string(raw)+"]")
				}
			}
		}
		if most, ok := subschema["maxLength"].(int); ok && subschema["contentEncoding"] == nil {
			for _, n := range []int{most, most + 1} {
				text := `"/` + strings.Repeat("x", n-1) + `"`
				list = append(list, text, "["+text+"]")
			}
		}
		words, _ := subschema["enum"].([]string)
		for _, w := range words {
			list = append(list, `"`+w+`"`, `["`+w+`"]`)
		}
	}
	collect(property)
	if items, ok := property["items"].(schema); ok {
		collect(items)
	}
	return list
}

// jsonObject returns a JSON object with the given number of members whose values are texts.
func jsonObject(memberCount int) string {
	var members []string
	for i := range memberCount {
		members = append(members, `"k`+strings.Repeat("x", i)+`":"1"`)
	}
	return "{" + strings.Join(members, ",") + "}"
}

// paramsWithLooseSchemas lists the parameters for which a schema accepts values that the method rejects. The texts
// describe these values.
var paramsWithLooseSchemas = map[string]string{
	"id": "an integer with an exponent", "ids": "an integer with an exponent", "memory": "the size in a text",
}

// For every parameter, the schema and the method accept the same values, except for paramsWithLooseSchemas.
func TestSchemasAcceptSameParametersAsMethods(t *testing.T) {
	for i, s := range Schemas() {
		m, compiled := &Methods()[i], compileSchema(t, s.Method, s.Params)
		for name, p := range s.Params["properties"].(schema) {
			base := baseParamsFor(t, m, compiled, name)
			for _, value := range jsonValuesToTry(p.(schema)) {
				params := maps.Clone(base)
				params[name] = value
				raw := encodeParams(params)
				err := checkParams(m, raw)
				permitted := schemaAccepts(t, compiled, raw)
				if permitted == (err == nil) || permitted && paramsWithLooseSchemas[name] != "" {
					continue
				}
				t.Errorf("%s: the schema permits %.150s: %t; the method says: %.200v", s.Method, raw, permitted, err)
			}
		}
	}
}

// baseParamsFor returns the parameters to combine with the parameter paramName: the first set of examples with which
// the method accepts some value of the named parameter.
func baseParamsFor(t *testing.T, m *Method, s *jsonschema.Schema, paramName string) map[string]string {
	t.Helper()
	for _, e := range exampleParamSets {
		for _, value := range []string{"1", `"a"`, "true", `"2027-01-01T00:00:00Z"`, "{}", `["dead"]`, `{"a":"b"}`,
			`"dead"`, `"minute"`, `"lock"`, `"10/m"`, "24", `"@a"`, `"one"`, `"skip"`, `"ended"`, `"fixed"`, `"run"`,
			`"022"`, `["true"]`, `"return"`, `"/a"`, `"1GiB"`, "[1]", `"1"`, `[{"command":"true"}]`, `"0 3 a"`,
			`"@hourly"`, `{"A":"/x"}`, `{"priority":1}`} {
			params := maps.Clone(e)
			params[paramName] = value
			if raw := encodeParams(params); schemaAccepts(t, s, raw) && checkParams(m, raw) == nil {
				return e
			}
		}
	}
	t.Errorf("%s: no example is accepted with %s", m.Name, paramName)
	return exampleParamSets[0]
}

func encodeParams(params map[string]string) string {
	var members []string
	for _, name := range slices.Sorted(maps.Keys(params)) {
		members = append(members, `"`+name+`":`+params[name])
	}
	return "{" + strings.Join(members, ",") + "}"
}

// The schemas and the server reject a request with the parameter "next" if one of its jobs sets a priority that is a
// number. They accept all other combinations of "next" and priorities.
func TestSchemasRejectPriorityWithNextParam(t *testing.T) {
	for request, accepted := range map[string]bool{
		`{"command":"true","next":true,"priority":3}`:                                             false,
		`{"command":"true","next":true,"priority":null}`:                                          true,
		`{"command":"true","next":false,"priority":3}`:                                            true,
		`{"command":"true","next":true}`:                                                          true,
		`{"commit":true,"next":true,"jobs":[{"command":"true"},{"command":"true","priority":0}]}`: false,
		`{"commit":true,"next":true,"jobs":[{"command":"true","priority":null}]}`:                 true,
		`{"commit":true,"jobs":[{"command":"true","priority":3}]}`:                                true,
		`{"commit":true,"next":true,"jobs":[{"command":"true"}]}`:                                 true,
	} {
		var into any = &EnqueueParams{}
		if strings.Contains(request, "jobs") {
			into = &EnqueueBatchParams{}
		}
		s := compileSchema(t, "params", paramsSchema(reflect.TypeOf(into).Elem()))
		err := decodeParams(json.RawMessage(request), into)
		if permitted := schemaAccepts(t, s, request); permitted != accepted || (err == nil) != accepted {
			t.Errorf("%s: permitted %v, decoded %v; want %v", request, permitted, err, accepted)
		}
	}
}
