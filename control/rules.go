package control

import (
	"cmp"
	_ "embed"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/queuectl/queuectl/queue"
)

// ruleset describes the parameters of a method: the meaning and the accepted values of each, and
// which parameters belong together. The server checks requests with it, and Schemas generates the
// published schemas from it, so the two always agree.
//
// For example, a field Name with the tag `rule:"queue,required"` rejects the parameters {} with "name: required;
// give the name of the queue", and adds {"required": ["name"]} to the schema. The first word of the tag names a
// constraint, a set of job fields or value classes. parameters.txt describes the parameters.
type ruleset struct {
	params     []param
	conditions []paramCondition
}

// param is one parameter. The client may leave out an optional parameter, but may not send null.
type param struct {
	name, doc string
	required  bool
	queue.Constraint
	fields       *fieldSet // for an object of a job's fields: the fields that it may have; otherwise nil
	valueClasses []valueClass
}

// fieldSet describes which job fields an object may have. A null member means the field's default.
type fieldSet struct {
	excludedFields []string // fields that the object must not have; the method's implementation rejects them
	isNewJob       bool     // the object is a new job, not a change to one
	isEdit         bool     // the object changes existing jobs, and must not be empty
}

// valueClass is a name for certain values of a parameter, like "jobs:many". A group can list the mark
// instead of a parameter. The mark counts as given if the parameter has such a value.
type valueClass struct {
	className string // the parameter's name, a colon and a word
	matches   func(v reflect.Value) bool
	schema    schema // the schema that accepts exactly these values
}

// param returns the parameter with a name, or nil.
func (r *ruleset) param(name string) *param {
	for i := range r.params {
		if r.params[i].name == name {
			return &r.params[i]
		}
	}
	return nil
}

// paramCondition is a condition on two sets of parameters. It depends on whether at least one of each set is
// given. A parameter that is false or an empty list counts as not given. An error names the first
// given parameter of set a or, if none is given, the first in the set.
type paramCondition struct {
	kind       *conditionKind
	setA, setB []string
	message    string // error message, without the parameter's name
}

// conditionKind is a kind of condition. Its functions get whether a parameter of each set is given, or the
// schemas of requests in which one is given.
type conditionKind struct {
	accepts  func(a, b bool) bool
	toSchema func(a, b schema) schema
}

var (
	// anyOf requires at least one of the parameters of set a.
	anyOf = &conditionKind{func(a, _ bool) bool { return a }, func(a, _ schema) schema { return a }}
	// oneSet requires parameters of exactly one of the two sets. A request without parameters of either set gets
	// the message. A request with parameters of both gets a message that names one of each set.
	oneSet = &conditionKind{func(a, b bool) bool { return a != b },
		func(a, b schema) schema { return schema{"oneOf": []schema{a, b}} }}
	// notTogether rejects a request that has parameters of both sets.
	notTogether = &conditionKind{func(a, b bool) bool { return !a || !b },
		func(a, b schema) schema { return schema{"not": schema{"allOf": []schema{a, b}}} }}
	// onlyWith makes a parameter of set b mandatory if one of set a is given.
	onlyWith = &conditionKind{func(a, b bool) bool { return !a || b },
		func(a, b schema) schema { return schema{"anyOf": []schema{{"not": a}, b}} }}
)

// check returns an error if a required parameter is missing, or if the given parameters violate a
// condition.
func (r *ruleset) check(given map[string]bool) error {
	for _, p := range r.params {
		if _, is := given[p.name]; p.required && !is {
			return queue.Invalid(p.name, "required; give the %s", p.doc)
		}
	}
	some := func(names []string) string { // returns the first of the names that is given
		for _, name := range names {
			if given[name] {
				return name
			}
		}
		return ""
	}
	for _, g := range r.conditions {
		switch a, b := some(g.setA), some(g.setB); {
		case g.kind.accepts(a != "", b != ""):
		case g.kind == oneSet && a != "":
			return queue.Invalid(b, `cannot be combined with parameter %q; use one of them`, a)
		default:
			// The name of a mark is the name of its parameter, a colon and a word.
			field, _, _ := strings.Cut(cmp.Or(a, g.setA[0]), ":")
			return queue.Invalid(field, "%s", g.message)
		}
	}
	return nil
}

// checkValue returns an error if the parameter does not accept the value.
func (p *param) checkValue(v reflect.Value) error {
	switch v := v.Interface().(type) {
	case Time:
		return nil
	case Duration:
		return p.CheckDuration(p.name, time.Duration(v))
	case *Duration:
		return p.CheckDuration(p.name, time.Duration(*v))
	case *RetentionAge:
		return nil // UnmarshalJSON has checked the value
	case []byte:
		return p.CheckText(p.name, string(v))
	}
	switch v.Kind() {
	case reflect.Pointer:
		return p.checkValue(v.Elem())
	case reflect.Int, reflect.Int64:
		return p.CheckNumber(p.name, float64(v.Int()))
	case reflect.Float64:
		return p.CheckNumber(p.name, v.Float())
	case reflect.String:
		return p.CheckText(p.name, v.String())
	case reflect.Slice:
		if err := p.CheckCount(p.name, v.Len()); err != nil || v.Type().Elem().Kind() != reflect.String {
			return err
		}
		for i := range v.Len() {
			if err := p.CheckEntry(p.name, v.Index(i).String()); err != nil {
				return err
			}
		}
	case reflect.Map:
		return p.CheckCount(p.name, v.Len())
	}
	return nil
}

// rulesets holds the ruleset of each type of parameters. The first call of rulesOf builds it. An
// initializer would link every ruleset into the client, although only the service checks requests.
var rulesets struct {
	once sync.Once
	all  map[reflect.Type]*ruleset
}

// rulesOf returns the ruleset of the parameters of a method.
func rulesOf(t reflect.Type) *ruleset {
	rulesets.once.Do(func() { rulesets.all = buildRulesets() })
	return rulesets.all[t]
}

// buildRulesets returns the ruleset of each type of parameters.
func buildRulesets() map[reflect.Type]*ruleset {
	all, docs, rows := map[reflect.Type]*ruleset{}, parameterDocs(), conditionRows()
	constraints, fields, classes := constraints(), fieldSets(), valueClasses()
	for _, m := range Methods() {
		t, r := m.endpoint.params, &ruleset{}
		for _, f := range reflect.VisibleFields(t) {
			name := jsonName(f)
			if f.Anonymous || name == "-" {
				continue
			}
			rule, required := strings.CutSuffix(f.Tag.Get("rule"), ",required")
			p := param{name: name, doc: docs[t.Name()+"."+name], required: required, Constraint: constraints[rule],
				fields: fields[rule], valueClasses: classes[rule]}
			switch {
			case !p.NotEmpty || p.MessageSuffix != "":
			case required:
				p.MessageSuffix = "; give the " + p.doc
			default:
				p.MessageSuffix = "; leave the parameter out"
			}
			r.params = append(r.params, p)
		}
		for _, c := range rows {
			if slices.Contains(strings.Fields(c.types), t.Name()) {
				a, b := strings.Fields(c.a), strings.Fields(c.b)
				r.conditions = append(r.conditions, paramCondition{c.kind, a, b, c.message})
			}
		}
		all[t] = r
	}
	return all
}

// parameterText has, for each list of parameter types, the lines NAME: DESCRIPTION.
//
//go:embed parameters.txt
var parameterText string

// parameterDocs returns the descriptions of parameters by TYPE.NAME.
func parameterDocs() map[string]string {
	docs := map[string]string{}
	var types []string
	for line := range strings.Lines(parameterText) {
		name, doc, described := strings.Cut(strings.TrimSpace(line), ": ")
		if !described {
			types = strings.Fields(line)
			continue
		}
		for _, t := range types {
			docs[t+"."+name] = doc
		}
	}
	return docs
}
