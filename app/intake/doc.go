// Package intake turns deliveries into sessions. A stored delivery comes in; what
// goes out is an intent for each wish a person expressed, recorded once however
// often GitHub tells of it, and from an allowed one a session, or a reply that
// says why there is none, or silence towards people who may not ask.
//
// Every delivery may be worked on again after a crash at any point: each step
// either looks up whether it happened or does no harm when repeated. There is
// one file for each event.
package intake
