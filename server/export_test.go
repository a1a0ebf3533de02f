package server

import (
	"net/http"
	"time"
)

// What the fuzz tests look at from outside of the package.

// ParseKey reads the lines of a key's header.
func ParseKey(lines []string) (string, error) { return parseKey(lines) }

// KeyTime is the time in a UUIDv7 key.
func KeyTime(key string) (time.Time, bool) { return keyTime(key) }

// KeyID is the identity of a key in its scope.
func KeyID(scope, key string) ID { return keyID(scope, key) }

// BodyHashID is the identity of a request without a key.
func BodyHashID(scope string, fp Fingerprint) ID { return bodyHashID(scope, fp) }

// FingerprintOf is the fingerprint of a request.
func FingerprintOf(r *http.Request, body []byte) (fp Fingerprint) {
	fingerprint(&fp, r, body)
	return fp
}

// Stored is a result as a store keeps it.
type Stored struct {
	Status     int
	Names      []string
	Values     [][]string
	Body       []byte
	Kept       bool
	ResourceID string
	URL        string
}

// Encode writes a result.
func (s Stored) Encode() []byte {
	in := stored{status: s.Status, body: s.Body, kept: s.Kept, ref: resource{s.ResourceID, s.URL}}
	for i, name := range s.Names {
		in.header = append(in.header, headerLine{name, s.Values[i]})
	}
	return in.encode()
}

// Decode reads a result.
func Decode(status int, data []byte) (Stored, error) {
	var out stored
	if err := out.decode(&Row{State: Done, Status: status, Data: data}); err != nil {
		return Stored{}, err
	}
	s := Stored{Status: out.status, Body: out.body, Kept: out.kept, ResourceID: out.ref.ID, URL: out.ref.URL}
	for _, line := range out.header {
		s.Names = append(s.Names, line.name)
		s.Values = append(s.Values, line.values)
	}
	return s, nil
}
