variable "table_name" {
  description = "The table of the jobs."
  type        = string
  default     = "lifebook-orchestrator-jobs"
}

variable "queue_name" {
  description = "The queue of their messages."
  type        = string
  default     = "lifebook-orchestrator-queue"
}

variable "dlq_name" {
  description = "Its dead-letter queue; without it, named after the queue."
  type        = string
  default     = null
}

variable "alarm_topic_name" {
  description = "The topic to be made, which is told of dead letters."
  type        = string
  default     = "lifebook-alerts"
}

variable "alarm_topic_arn" {
  description = "A topic of your own that is told of dead letters; then none is made."
  type        = string
  default     = null
}

variable "visibility_timeout" {
  description = "Seconds that a message is hidden; for Lambda six times the function's timeout."
  type        = number
  default     = 60
}

variable "max_receives" {
  description = "So often a message is received before SQS takes it for dead."
  type        = number
  default     = 5
}

variable "tags" {
  description = "Tags for everything that can have some."
  type        = map(string)
  default     = {}
}
