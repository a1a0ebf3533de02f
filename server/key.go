package server

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"time"
)

// keyHeader is the request header that carries the key
// (draft-ietf-httpapi-idempotency-key-header).
const keyHeader = "Idempotency-Key"

const (
	maxKeyLength = 255
	// maxKeyAhead is how far ahead of our clock the time in a UUIDv7 key may
	// be.
	maxKeyAhead = 5 * time.Minute
)

// parseKey reads the key from the lines of its header. A key is 1 to 255
// characters 0x21 to 0x7E, bare or as a String of RFC 9651: both spellings are
// the same key. There is one: two lines are refused even if they are equal.
func parseKey(lines []string) (string, error) {
	if len(lines) > 1 {
		return "", errors.New("the header is there more than once; send one key")
	}
	key := strings.Trim(lines[0], " \t")
	if strings.HasPrefix(key, `"`) {
		var err error
		if key, err = unquote(key); err != nil {
			return "", err
		}
	}
	switch {
	case key == "":
		return "", errors.New("the key is empty")
	case len(key) > maxKeyLength:
		return "", errors.New("the key is longer than 255 characters")
	}
	for i := range len(key) {
		if c := key[i]; c < 0x21 || c > 0x7e {
			return "", errors.New("the key has a character that is not visible ASCII")
		}
	}
	return key, nil
}

// unquote reads a String of RFC 9651 section 4.2.5 that is all of s: parameters
// and whatever else may follow one are refused.
func unquote(s string) (string, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; c {
		case '"':
			if i != len(s)-1 {
				return "", errors.New("something follows the closing quote of the key")
			}
			return b.String(), nil
		case '\\':
			i++
			if i == len(s) || (s[i] != '"' && s[i] != '\\') {
				return "", errors.New("the key has a backslash before something that is neither quote nor backslash")
			}
			b.WriteByte(s[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", errors.New("the quote of the key is not closed")
}

// keyTime is the time in a UUIDv7 key (RFC 9562 section 5.7). ok is false for
// any other key.
func keyTime(key string) (t time.Time, ok bool) {
	if len(key) != 36 || key[8] != '-' || key[13] != '-' || key[18] != '-' || key[23] != '-' || key[14] != '7' {
		return time.Time{}, false
	}
	var b [16]byte
	var digits [32]byte
	n := 0
	for i := range len(key) {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			continue
		}
		digits[n] = key[i]
		n++
	}
	if _, err := hex.Decode(b[:], digits[:]); err != nil || b[8]&0xc0 != 0x80 {
		return time.Time{}, false
	}
	ms := int64(binary.BigEndian.Uint64(b[:8]) >> 16)
	return time.UnixMilli(ms), true
}

// keyID is the identity of a key in its scope.
func keyID(scope, key string) ID {
	buf := make([]byte, 0, 512) // enough to stay on the stack, mostly
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(scope)))
	buf = append(buf, scope...)
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(key)))
	buf = append(buf, key...)
	return sha256.Sum256(buf)
}

// bodyHashID is the identity of a request without a key. The length that no
// key has keeps it apart from every key's.
func bodyHashID(scope string, fp Fingerprint) ID {
	buf := make([]byte, 0, 512)
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(scope)))
	buf = append(buf, scope...)
	buf = binary.BigEndian.AppendUint64(buf, ^uint64(0))
	buf = append(buf, fp[:]...)
	return sha256.Sum256(buf)
}
