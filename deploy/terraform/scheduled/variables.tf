variable "table_name" {
  description = "The table of the jobs."
  type        = string
  default     = "lifebook-orchestrator-jobs"
}

variable "tags" {
  description = "Tags for everything that can have some."
  type        = map(string)
  default     = {}
}
