package egress

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// issuerLife is how long an issuer's certificates are good, in both directions
// from its making: clocks differ.
const issuerLife = 7 * 24 * time.Hour

// issuer is a certificate authority of one proxy. Its key is nowhere but here,
// and its certificate says that it is good for the hosts it was made for and
// those below them only.
type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	made time.Time
}

func newIssuer(hosts []string) (*issuer, error) {
	i := &issuer{made: time.Now()}
	template := i.template()
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	template.PermittedDNSDomains, template.PermittedDNSDomainsCritical = hosts, true
	var err error
	if i.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &i.key.PublicKey, i.key)
	if err != nil {
		return nil, err
	}
	i.cert, err = x509.ParseCertificate(der)
	return i, err
}

func (i *issuer) template() *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // the system's randomness does not fail
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "Inspect egress proxy"},
		NotBefore: i.made.Add(-issuerLife), NotAfter: i.made.Add(issuerLife),
	}
}

// issue makes a certificate for a host.
func (i *issuer) issue(host string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := i.template()
	template.DNSNames = []string{host}
	template.Subject.CommonName = "" // it may be too short for the name
	template.KeyUsage, template.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	der, err := x509.CreateCertificate(rand.Reader, template, i.cert, &key.PublicKey, i.key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// encoded is the certificate of the authority as PEM.
func (i *issuer) encoded() []byte { return encodeCertificate(i.cert.Raw) }

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// CheckAuthority reads what a proxy's Authority returned, from whoever passed
// it on, and returns it in its plain form. The error says what is wrong with it.
func CheckAuthority(text []byte) ([]byte, error) {
	block, rest := pem.Decode(text)
	if block == nil || block.Type != "CERTIFICATE" || len(rest) > 0 {
		return nil, errors.New("it is not one certificate in PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("it is no certificate: %w", err)
	}
	if !cert.IsCA || len(cert.PermittedDNSDomains) == 0 {
		return nil, errors.New("it is not the certificate of an egress proxy's authority")
	}
	return encodeCertificate(cert.Raw), nil
}
