package manifest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"regexp"
	"slices"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"redrive.dev/redrive/internal/credentials"
)

// decodeSecret reads a Secret with all its values in Data. No error holds a value.
func decodeSecret(o object) (*corev1.Secret, error) {
	if err := plainText(o); err != nil {
		return nil, err
	}
	secret := &corev1.Secret{}
	strict, err := kjson.UnmarshalStrict(o.data, secret)
	if err != nil {
		return nil, o.malformed(err)
	}
	var mistakes []error
	for _, err := range o.strict {
		mistakes = append(mistakes, o.twice(err))
	}
	for _, err := range strict {
		mistakes = append(mistakes, o.unknownOfSecret(err))
	}
	if secret.Namespace == "" {
		secret.Namespace = DefaultNamespace
	}
	errs := apivalidation.ValidateObjectMeta(&secret.ObjectMeta, true, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	if secret.Data == nil {
		secret.Data = make(map[string][]byte, len(secret.StringData))
	}
	for key, value := range secret.StringData {
		secret.Data[key] = []byte(value)
	}
	secret.StringData = nil
	for _, key := range slices.Sorted(maps.Keys(secret.Data)) {
		for _, message := range validation.IsConfigMapKey(key) {
			errs = append(errs, field.Invalid(field.NewPath("data").Key(key), key, message))
		}
	}
	for _, err := range errs {
		mistakes = append(mistakes, o.mistake(err.Field, err.ErrorBody()))
	}
	return secret, inOrder(mistakes)
}

var unknownField = regexp.MustCompile(`^unknown field "(.*)"$`)

func (o object) unknownOfSecret(err error) error {
	found := unknownField.FindStringSubmatch(err.Error())
	if found == nil {
		return o.mistake("", err.Error())
	}
	return o.mistake(found[1], "unknown field"+suggested(found[1], []string{"data", "immutable", "metadata", "stringData", "type"}))
}

// isTextKey is true of those keys of a broker's Secret that hold a text.
func isTextKey(key string) bool {
	return slices.Contains([]string{
		credentials.KeyHost, credentials.KeyPort, credentials.KeyUsername, credentials.KeyVHost, credentials.KeyURI, credentials.KeyManagementURI,
	}, key)
}

func isPlain(value []byte) bool {
	return utf8.Valid(value) && !bytes.ContainsFunc(value, unicode.IsControl)
}

// plainText finds what stands under data in plain text, where base64 should.
func plainText(o object) error {
	var written struct {
		Data map[string]any `json:"data"`
	}
	if err := json.Unmarshal(o.data, &written); err != nil {
		return nil //nolint:nilerr // decodeSecret says what is wrong with it
	}
	var mistakes []error
	for _, key := range slices.Sorted(maps.Keys(written.Data)) {
		text, isText := written.Data[key].(string)
		if written.Data[key] == nil {
			continue
		}
		value, err := base64.StdEncoding.DecodeString(text)
		// A word of four or eight letters is base64 too, but of no text.
		if err != nil || !isText || isTextKey(key) && !isPlain(value) {
			mistakes = append(mistakes, o.mistake("data["+key+"]", "this is not base64: move it to stringData, where values stand in plain text"))
		}
	}
	return errors.Join(mistakes...)
}
