package dashboard

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"text/template"

	"github.com/queuectl/queuectl/control"
)

// openAPITemplate returns the template of the OpenAPI description. It parses the template at its first call.
var openAPITemplate = sync.OnceValue(func() *template.Template {
	const name = "openapi.json.tmpl"
	return template.Must(template.New(name).Funcs(openAPIFuncs).ParseFS(templateFiles, "templates/"+name))
})

// openAPIFuncs contains the functions that the template of the OpenAPI description calls.
var openAPIFuncs = template.FuncMap{
	"json": func(v any) (string, error) {
		raw, err := json.Marshal(v)
		return string(raw), err
	},
	"contains": func(names any, name string) bool { // names is nil if the schema requires no parameters
		list, _ := names.([]string)
		return slices.Contains(list, name)
	},
	"querySchema": func(v any) map[string]any { return control.QueryParamSchema(v.(map[string]any)) },
}

// serveOpenAPI replies with a description of all paths below /api in the format OpenAPI 3.1.
func (s *Server) serveOpenAPI(w http.ResponseWriter, r *http.Request, _ *visitor) error {
	if err := checkParamNames(r.URL.Query()); err != nil {
		return err
	}
	methods := slices.DeleteFunc(control.Schemas(), func(m control.MethodSchema) bool {
		return control.FindReadOnlyMethod(m.Method) == nil
	})
	var text bytes.Buffer
	err := openAPITemplate().Execute(&text, map[string]any{"Methods": methods, "Cookie": s.sessionCookieName(r)})
	if err == nil {
		writeJSON(w, http.StatusOK, json.RawMessage(text.Bytes()))
	}
	return err
}
