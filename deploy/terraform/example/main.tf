# Jobs for a shop, in a region of its own choice, run by a function.

provider "aws" {
  region = "eu-central-1"
}

module "jobs" {
  source = "../"

  table_name         = "shop-jobs"
  queue_name         = "shop-queue"
  alarm_topic_name   = "shop-alerts"
  visibility_timeout = 6 * 60
  max_receives       = 20
}

data "aws_iam_policy_document" "assume" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["lambda.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "worker" {
  name               = "shop-worker"
  assume_role_policy = data.aws_iam_policy_document.assume.json
}

resource "aws_iam_role_policy_attachment" "worker" {
  role       = aws_iam_role.worker.name
  policy_arn = module.jobs.worker_policy_arn
}

resource "aws_iam_role_policy_attachment" "logs" {
  role       = aws_iam_role.worker.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"
}

resource "aws_lambda_function" "worker" {
  function_name = "shop-worker"
  role          = aws_iam_role.worker.arn
  runtime       = "python3.12"
  handler       = "shop.functions.work"
  filename      = "shop.zip"
  timeout       = 60
  memory_size   = 512

  environment {
    variables = {
      HOLDFAST_URL = module.jobs.url
    }
  }
}

resource "aws_lambda_event_source_mapping" "worker" {
  event_source_arn        = module.jobs.queue_arn
  function_name           = aws_lambda_function.worker.arn
  batch_size              = 10
  function_response_types = ["ReportBatchItemFailures"]

  scaling_config {
    maximum_concurrency = 50
  }
}

resource "aws_lambda_function" "sweep" {
  function_name = "shop-sweep"
  role          = aws_iam_role.worker.arn
  runtime       = "python3.12"
  handler       = "shop.functions.sweep"
  filename      = "shop.zip"
  timeout       = 60
  memory_size   = 256

  environment {
    variables = {
      HOLDFAST_URL = module.jobs.url
    }
  }
}

resource "aws_cloudwatch_event_rule" "sweep" {
  name                = "shop-sweep"
  schedule_expression = "rate(1 minute)"
}

resource "aws_cloudwatch_event_target" "sweep" {
  rule = aws_cloudwatch_event_rule.sweep.name
  arn  = aws_lambda_function.sweep.arn
}

resource "aws_lambda_permission" "sweep" {
  statement_id  = "holdfast-sweep"
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.sweep.function_name
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.sweep.arn
}
