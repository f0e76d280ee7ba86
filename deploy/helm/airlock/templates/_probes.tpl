{{/* Probes of the kubelet, which has no client certificate, and speaks gRPC without TLS only. */}}
{{- define "airlock.ready" -}}
{{- if and .Values.tls.secretName .Values.tls.clientCA -}}
tcpSocket: {port: grpc}
{{- else if .Values.tls.secretName -}}
{{ include "airlock.httpGet" (list . "/healthz") }}
{{- else -}}
grpc: {port: 7443}
{{- end }}
{{- end }}

{{- define "airlock.alive" -}}
{{- if and .Values.tls.secretName .Values.tls.clientCA -}}
tcpSocket: {port: http}
{{- else -}}
{{ include "airlock.httpGet" (list . "/livez") }}
{{- end }}
{{- end }}

{{- define "airlock.httpGet" -}}
{{- $values := (index . 0).Values -}}
httpGet:
  path: {{ index . 1 }}
  port: http
  scheme: {{ ternary "HTTPS" "HTTP" (ne $values.tls.secretName "") }}
  {{- with (($values.config.http | default dict).hosts) }}
  httpHeaders:
    - {name: Host, value: {{ first . | replace "*" "probe" | quote }}}
  {{- end }}
{{- end }}
