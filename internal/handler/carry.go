package handler

import (
	"errors"
	"fmt"
	"net/url"
	"unicode/utf8"

	"redrive.dev/redrive/internal/message"
)

// headerCarry is in an answer that is not success what the handler wants to have back, and in the next request that. Its value is percent
// encoded, as the headers of a message are.
const headerCarry = "Redrive-Carry"

// checkCarry says why a text cannot be carried to the next attempt.
func checkCarry(text string) error {
	switch {
	case len(text) > message.MaxCarry:
		return fmt.Errorf("carry takes %d bytes, and may take %d", len(text), message.MaxCarry)
	case !utf8.ValidString(text):
		return errors.New("carry is no UTF-8")
	}
	return nil
}

// carryOf reads what an answer wants to have back; nil where it says nothing. Servers refuse requests with long headers, so the bound
// is that of the value as it stands there, and as it stands in the next request.
func carryOf(value *string) (*string, error) {
	if value == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	if len(*value) > message.MaxCarry {
		return nil, fmt.Errorf("%s takes %d bytes, and may take %d", headerCarry, len(*value), message.MaxCarry)
	}
	text, err := url.PathUnescape(*value)
	if err != nil {
		return nil, fmt.Errorf("%s has a %% without two hexadecimal digits", headerCarry)
	}
	if err := checkCarry(text); err != nil {
		return nil, err
	}
	if size := len(percentEncoded(text)); size > message.MaxCarry { // then the next request could not have it
		return nil, fmt.Errorf("%s takes %d bytes when it is encoded, and may take %d", headerCarry, size, message.MaxCarry)
	}
	return &text, nil
}

// addCarry gives back what the last attempt asked for, unless it is too long for a header.
func (f *fields) addCarry(text string) {
	if encoded := percentEncoded(text); encoded != "" && len(encoded) <= message.MaxCarry {
		f.add(headerCarry, encoded)
	}
}
