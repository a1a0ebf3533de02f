package oncemore

// policyCase is a policy file and what is wrong with it. The parser and the
// JSON Schema are both held to the same list.
type policyCase struct {
	name string
	json string
	bad  []string // the paths of all its problems, "" for the file as a whole
	// What the schema can't see: that names are repeated, that rules conflict,
	// sums of units. Only the parser is held to these.
	schemaBlind bool
}

var policyCorpus = []policyCase{
	{name: "nothing", json: `{}`},
	{name: "white space", json: " \t\r\n{ } \r\n"},
	{name: "everything", json: `{"name":"payments","max_attempts":3,"base_delay":"100ms","max_delay":"2s","multiplier":1.5,"jitter":"equal",
		"attempt_timeout":"5s","overall_timeout":"20s","max_retry_after":"30s","final_statuses":[429,501],"key_methods":["POST","PATCH","PUT"],
		"max_buffered_body":65536,"buffer_response":1024,"budget":{"capacity":100,"retry_cost":2,"timeout_cost":4},
		"rules":[{"match":"POST pay.example.com/v1/","max_attempts":2}]}`},
	{name: "all zero", json: `{"name":"","max_attempts":0,"base_delay":"0s","max_delay":"0","multiplier":0,"jitter":"","attempt_timeout":"0s",
		"max_buffered_body":0,"buffer_response":0,"budget":{"capacity":0,"retry_cost":0,"timeout_cost":0}}`},
	{name: "all that can be off", json: `{"attempt_timeout":"none","overall_timeout":"none","max_retry_after":"none","max_buffered_body":"none","buffer_response":"none","budget":{"capacity":"none"}}`},
	{name: "negative is off too", json: `{"attempt_timeout":"-1s","overall_timeout":"-1h","max_retry_after":"-5ms","max_buffered_body":-1,"buffer_response":-7,"budget":{"capacity":-1}}`},
	{name: "empty lists", json: `{"final_statuses":[],"key_methods":[],"rules":[],"budget":{}}`},
	{name: "a list twice over", json: `{"final_statuses":[503,503],"key_methods":["POST","POST"]}`},
	{name: "whole numbers with a point", json: `{"max_attempts":5.0,"max_buffered_body":1e3}`},
	{name: "composed durations", json: `{"base_delay":"1m0.5s","max_delay":"+1.5h","max_retry_after":"1h2m3s4ms5us6ns","attempt_timeout":".5s","overall_timeout":"5.s"}`},
	{name: "micro sign", json: `{"base_delay":"5µs","max_delay":"5μs"}`},
	{name: "escaped name", json: `{"max\u005fattempts":2}`},
	{name: "unicode name", json: `{"name":"Zahlungen – größer als 1.000 €"}`},
	{name: "large numbers", json: `{"max_attempts":9007199254740992,"multiplier":1e308,"max_buffered_body":9223372036854775807}`},
	{name: "the least number", json: `{"max_buffered_body":-9223372036854775808}`},
	{name: "less than that", json: `{"max_buffered_body":-9223372036854775809,"buffer_response":-1e19}`, bad: []string{"buffer_response", "max_buffered_body"}},
	{name: "a method of one's own", json: `{"key_methods":["M-SEARCH","X1"]}`},

	{name: "null", json: `null`, bad: []string{""}},
	{name: "an array", json: `[{}]`, bad: []string{""}},
	{name: "a string", json: `"none"`, bad: []string{""}},
	{name: "unknown field", json: `{"max_retries":3}`, bad: []string{"max_retries"}},
	{name: "Go's spelling", json: `{"MaxAttempts":3,"maxAttempts":3,"MAX_ATTEMPTS":3}`, bad: []string{"MAX_ATTEMPTS", "MaxAttempts", "maxAttempts"}},
	{name: "match outside of a rule", json: `{"match":"/"}`, bad: []string{"match"}},
	{name: "unknown in budget", json: `{"budget":{"size":1}}`, bad: []string{"budget.size"}},
	{name: "unknown in a rule", json: `{"rules":[{"match":"/a"},{"match":"/b","retries":1}]}`, bad: []string{"rules[1].retries"}},
	{
		name: "null fields", json: `{"name":null,"max_attempts":null,"final_statuses":null,"budget":null,"rules":null,"attempt_timeout":null}`,
		bad: []string{"attempt_timeout", "budget", "final_statuses", "max_attempts", "name", "rules"},
	},
	{
		name: "types", json: `{"name":1,"max_attempts":"3","base_delay":200,"multiplier":"2","jitter":true,"final_statuses":501,"key_methods":"POST","budget":500,"rules":{}}`,
		bad: []string{"base_delay", "budget", "final_statuses", "jitter", "key_methods", "max_attempts", "multiplier", "name", "rules"},
	},
	{
		name: "types in lists", json: `{"final_statuses":["501",501,null],"key_methods":[1,"POST",{}],"rules":["/",5,null]}`,
		bad: []string{"final_statuses[0]", "final_statuses[2]", "key_methods[0]", "key_methods[2]", "rules[0]", "rules[1]", "rules[2]"},
	},
	{name: "fractions", json: `{"max_attempts":2.5,"max_buffered_body":0.1,"final_statuses":[500.5]}`, bad: []string{"final_statuses[0]", "max_attempts", "max_buffered_body"}},
	{name: "past int64", json: `{"max_attempts":9223372036854775808,"buffer_response":1e400}`, bad: []string{"buffer_response", "max_attempts"}},
	{name: "past float64", json: `{"multiplier":1e400}`, bad: []string{"multiplier"}},
	{
		name: "not to be negative", json: `{"max_attempts":-1,"base_delay":"-1s","max_delay":"-1ns","multiplier":-2,"budget":{"retry_cost":-1,"timeout_cost":-1}}`,
		bad: []string{"base_delay", "budget.retry_cost", "budget.timeout_cost", "max_attempts", "max_delay", "multiplier"},
	},
	{
		name: "not to be off", json: `{"max_attempts":"none","base_delay":"none","max_delay":"none","multiplier":"none","final_statuses":"none","key_methods":"none","budget":"none"}`,
		bad: []string{"base_delay", "budget", "final_statuses", "key_methods", "max_attempts", "max_delay", "multiplier"},
	},
	{name: "a multiplier that shrinks", json: `{"multiplier":0.5}`, bad: []string{"multiplier"}},
	{
		name: "durations", json: `{"base_delay":"","max_delay":"5","attempt_timeout":"10 s","overall_timeout":"1d","max_retry_after":"None"}`,
		bad: []string{"attempt_timeout", "base_delay", "max_delay", "max_retry_after", "overall_timeout"},
	},
	{
		name: "durations, more", json: `{"base_delay":"s","max_delay":".s","attempt_timeout":"1s ","overall_timeout":"--1s","max_retry_after":"1s-1s"}`,
		bad: []string{"attempt_timeout", "base_delay", "max_delay", "max_retry_after", "overall_timeout"},
	},
	{name: "a duration past 292 years", json: `{"max_delay":"9999999h"}`, bad: []string{"max_delay"}, schemaBlind: true},
	{name: "jitter", json: `{"jitter":"Full"}`, bad: []string{"jitter"}},
	{
		name: "final statuses", json: `{"final_statuses":[429,500,599,404,499,600,0,-501,408]}`,
		bad: []string{"final_statuses[3]", "final_statuses[4]", "final_statuses[5]", "final_statuses[6]", "final_statuses[7]", "final_statuses[8]"},
	},
	{
		name: "key methods", json: `{"key_methods":["post","","PO ST","Patch","POST"]}`,
		bad: []string{"key_methods[0]", "key_methods[1]", "key_methods[2]", "key_methods[3]"},
	},

	{name: "a name twice", json: `{"max_attempts":2,"max_attempts":2}`, bad: []string{"max_attempts"}, schemaBlind: true},
	{name: "a name twice, once escaped", json: `{"jitter":"full","jitte\u0072":"full"}`, bad: []string{"jitter"}, schemaBlind: true},
	{name: "a name twice in a rule", json: `{"rules":[{"match":"/","match":"/a"}]}`, bad: []string{"rules[0].match"}, schemaBlind: true},
	{name: "an unknown name twice", json: `{"x":1,"x":2}`, bad: []string{"x", "x"}},

	{name: "patterns", json: `{"rules":[{"match":"/"},{"match":"GET /a"},{"match":"POST  \ta.example/"},{"match":"b.example/x/{id}"},
		{"match":"b.example/y/{rest...}"},{"match":"/c/{$}"},{"match":"[::1]/x"},{"match":"10.0.0.1/x"},{"match":"M-SEARCH c.example/"},{"match":"/z/%2F"},{"match":"host_1/"}]}`},
	{name: "all of a rule", json: `{"rules":[{"match":"/","max_attempts":1,"base_delay":"1ms","max_delay":"1ms","multiplier":1,"jitter":"none","attempt_timeout":"none",
		"overall_timeout":"none","max_retry_after":"none","final_statuses":[],"key_methods":[],"max_buffered_body":"none","buffer_response":"none"}]}`},
	{
		name: "not in a rule", json: `{"rules":[{"match":"/","name":"x"},{"match":"/a","budget":{}},{"match":"/b","rules":[]}]}`,
		bad: []string{"rules[0].name", "rules[1].budget", "rules[2].rules"},
	},
	{name: "a rule for nothing", json: `{"rules":[{"max_attempts":2},{"match":""}]}`, bad: []string{"rules[0].match", "rules[1].match"}},
	{
		name: "values in rules", json: `{"rules":[{"match":"/"},{"match":"/a","jitter":"some","max_attempts":-1,"final_statuses":[400]}]}`,
		bad: []string{"rules[1].final_statuses[0]", "rules[1].jitter", "rules[1].max_attempts"},
	},
	{
		name: "a port", json: `{"rules":[{"match":"pay.example.com:443/"},{"match":"[::1]:443/"},{"match":"::1/"}]}`,
		bad: []string{"rules[0].match", "rules[1].match", "rules[2].match"},
	},
	{
		name: "hosts", json: `{"rules":[{"match":"Pay.example.com/"},{"match":"https://pay.example.com/v1/"},{"match":"*.example.com/"},{"match":"user@example.com/"},{"match":"[]/"}]}`,
		bad: []string{"rules[0].match", "rules[1].match", "rules[2].match", "rules[3].match", "rules[4].match"},
	},
	{
		name: "patterns that can never match", json: `{"rules":[{"match":"/a/../b"},{"match":"//a"},{"match":"post /"},{"match":"GET /a/./b"},{"match":"/a/.."}]}`,
		bad: []string{"rules[0].match", "rules[1].match", "rules[2].match", "rules[3].match", "rules[4].match"},
	},
	{
		name: "malformed patterns", json: `{"rules":[{"match":"nothing"},{"match":"/{"},{"match":"/{}"},{"match":"/a{b}"},{"match":"/{a}b"},{"match":"/{a...}/b"},{"match":"/{$}/b"},{"match":"/a b"},{"match":"{a}/"},{"match":"/{1}"},{"match":"POST"}]}`,
		bad: []string{"rules[0].match", "rules[10].match", "rules[1].match", "rules[2].match", "rules[3].match", "rules[4].match", "rules[5].match", "rules[6].match", "rules[7].match", "rules[8].match", "rules[9].match"},
	},
	{name: "one wildcard twice", json: `{"rules":[{"match":"/{a}/{a}"}]}`, bad: []string{"rules[0].match"}, schemaBlind: true},
	{
		name: "conflicts", json: `{"rules":[{"match":"/{a}"},{"match":"/{b}"},{"match":"/x/"},{"match":"GET h/"},{"match":"h/x/"},{"match":"h/x/{y}"}]}`,
		bad: []string{"rules[1].match", "rules[4].match", "rules[5].match"}, schemaBlind: true,
	},
}

// brokenPolicies are not JSON documents, so that no schema gets to see them.
var brokenPolicies = []policyCase{
	{name: "empty", json: ``},
	{name: "blank", json: " \n"},
	{name: "cut", json: `{"max_attempts":`},
	{name: "a comma too many", json: `{"max_attempts":3,}`},
	{name: "a comment", json: "{} // why"},
	{name: "two policies", json: `{}{}`},
	{name: "a stray brace", json: `{}}`},
	{name: "a byte order mark", json: "\ufeff{}"},
	{name: "not UTF-8", json: "{\"name\":\"\xff\"}"},
	{name: "a number with a zero before", json: `{"max_attempts":05}`},
	{name: "a control character", json: "{\"name\":\"a\nb\"}"},
}
